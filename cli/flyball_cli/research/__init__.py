"""Computations on this machine alone: simulations, frontiers, and the methods of papers on their measurements."""
