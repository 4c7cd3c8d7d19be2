"""Pipelines whose stages run at the clocks of an energy plan, are measured for one, and say who is slow."""
