"""What a job and a GPU do at a clock and a power limit: models of speed and power, their priors and their calibration."""
