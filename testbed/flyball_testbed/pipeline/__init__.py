"""Pipeline parallel training for the test bench: processes that stand for stages, on boards that follow a profile."""
