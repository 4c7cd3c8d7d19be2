"""GPU drivers: NVML for hardware, and two simulators of one documented model for everything else."""
