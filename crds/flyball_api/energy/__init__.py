"""Energy in the API: profiles and the frontiers in them, quotas, reports."""
