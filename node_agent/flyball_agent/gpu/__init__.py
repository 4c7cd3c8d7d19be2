"""One abstract GPU, and the drivers behind it: NVIDIA's management library (NVML) and simulated GPUs."""
