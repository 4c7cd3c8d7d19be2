"""Kareus' search on measured tables and on a modelled pipeline."""
