"""The simulated cluster while time passes: nodes, running jobs, what they draw."""
