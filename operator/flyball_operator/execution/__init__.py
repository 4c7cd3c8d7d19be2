"""Executes what the controllers have decided: grants first, then one safe step for each job, then statuses."""
