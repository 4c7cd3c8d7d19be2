"""Processes that may be killed at any moment without harm to others: the operator's planner, the simulator's runs."""

from flyball_processes.worker_process import WorkerProcess

__all__ = ["WorkerProcess"]
