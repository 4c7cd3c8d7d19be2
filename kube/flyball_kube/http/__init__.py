"""How requests go to an API server: one transport, two ways to carry it, and answers of any depth."""
