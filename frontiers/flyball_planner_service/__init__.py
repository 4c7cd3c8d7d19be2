"""Plans pipelines for those who ask over HTTP: a profile in, its time-energy frontier with every stage's clocks out."""
