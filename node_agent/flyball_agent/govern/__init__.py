"""What governs one node's GPUs: enforcement and energy under one loop, and the driver that it keeps open."""
