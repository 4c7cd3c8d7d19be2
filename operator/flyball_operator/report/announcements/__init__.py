"""What is worth a Kubernetes Event: the moments that a user or an SRE would look for.

An Event follows from two statuses, the one before a write and the one after, so that each moment is recorded once,
however often the leader changes.
"""
