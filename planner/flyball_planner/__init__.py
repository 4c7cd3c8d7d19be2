"""The planner: pure functions from measured data and a snapshot of the cluster to frontiers, allocations and placements."""
