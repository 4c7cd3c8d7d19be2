"""Training jobs: the way from the plan to running pods, progress and energy, and what the status says."""
