"""What each kind of job does on each GPU model, learned from the agents' reports."""
