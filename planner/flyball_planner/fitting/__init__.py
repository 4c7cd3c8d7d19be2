"""A job's model fitted to what was measured while it ran."""
