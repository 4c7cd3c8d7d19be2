"""One leader's term: each cycle reads the cluster, lets the controllers decide and executes what they decided."""
