"""Which pod holds which GPUs."""
