"""Every write to the API server, each sent only while this operator holds the Lease of the leader."""
