"""What each PowerCap allows now, what is committed under it, and what its status says of that."""
