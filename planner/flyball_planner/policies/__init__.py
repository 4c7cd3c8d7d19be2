"""Scheduling policies: who gets how many GPUs at which clock, each in a module of its own."""
