"""Real training: a PyTorch to run it by, and what was trained, read back."""
