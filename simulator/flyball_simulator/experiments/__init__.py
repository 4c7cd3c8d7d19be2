"""Many simulations: swept, run in parallel, kept, and compared."""
