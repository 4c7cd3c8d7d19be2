"""The planner as the operator uses it: the snapshot that it is given, and the process that it runs in."""
