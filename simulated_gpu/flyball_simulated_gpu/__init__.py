"""Simulated GPUs: one physical model, as devices in a file that processes share, and in memory under virtual time."""
