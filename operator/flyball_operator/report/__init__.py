"""What users are shown: statuses, Events and metrics."""
