"""Strict PowerFlow: greedy steps of energy and time under the power caps."""
