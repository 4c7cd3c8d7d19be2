"""What every process of ours has: its options, its logs, its version."""
