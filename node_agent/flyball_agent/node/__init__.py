"""One node's agent towards the outside: what it finds out, and what it says in a status and in metrics."""
