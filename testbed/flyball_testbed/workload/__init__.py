"""What runs on the simulated machines: the node agents, and training processes on simulated GPUs."""
