"""What the simulated hardware does: measured throughputs and power, and the noise of measurements."""
