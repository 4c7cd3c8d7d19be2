"""Which pod used how much energy, and how fast its job trains."""
