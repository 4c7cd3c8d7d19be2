"""What the operator is as a process: its probes, and its login for kopf."""
