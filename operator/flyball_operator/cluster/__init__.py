"""The cluster as the API server has it: what is watched, what belongs to whom, and what became of a write."""
