"""Small servers and calls on sockets, bounded in size, in time and in number."""
