"""What each node should be granted, which grants may be sent now, and the brakes that go before them."""
