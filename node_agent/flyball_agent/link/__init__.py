"""The line between an agent and an enforcer in another process: its two ends, and what passes."""
