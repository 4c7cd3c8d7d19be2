"""Each GPU node: what it is, the most that it may draw, and which grants its agent has yet to acknowledge."""
