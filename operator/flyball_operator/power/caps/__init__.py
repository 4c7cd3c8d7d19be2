"""What each PowerCap allows now, what is committed under it, and its status."""
