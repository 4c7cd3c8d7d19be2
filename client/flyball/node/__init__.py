"""What a training process asks of the agent on its node: energy, clocks and what its GPUs can, over the agent's socket."""
