"""The policy `price`: GPUs, clocks and nodes bought at the price of a joule in seconds of job time."""
