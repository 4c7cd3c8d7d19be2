"""The agent's processes: how each is started, what it is made of, and how it ends."""
