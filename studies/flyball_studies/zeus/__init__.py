"""Zeus replayed on recorded training runs."""
