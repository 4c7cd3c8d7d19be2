"""Scheduling policies from the literature, each in a module of its own."""
