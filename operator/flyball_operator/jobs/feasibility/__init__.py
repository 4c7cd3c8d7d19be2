"""Whether a job can run here at all: where its pods fit, what its quota leaves it, its bounds and its energy budget."""
