"""Time-energy frontiers of pipelines: Perseus and, as a baseline, EnvPipe."""
