"""The plan that leaves the planner: each job's decision with its reason, and what each cap comes to."""
