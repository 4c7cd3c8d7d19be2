"""What of a job's state is saved, whole or in shards, and found whole again after a kill at any moment."""
