"""Traces of jobs, and the workloads drawn from them."""
