"""The sockets of training processes: how pods get them, and what is said there."""
