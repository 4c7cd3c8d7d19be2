"""The parts of Flyball as processes: the operator, the agent, the page, the planner service."""
