"""A trace-driven simulator of a GPU cluster that runs the planner's own policies."""
