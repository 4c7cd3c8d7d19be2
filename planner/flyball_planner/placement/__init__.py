"""Which nodes a job's GPUs are on, and which nodes can be emptied."""
