"""What is known of a job's runs: how far it has come, what it has drawn and cost, and how runs have ended."""
