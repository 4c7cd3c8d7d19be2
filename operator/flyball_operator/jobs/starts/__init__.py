"""How the starts of jobs go: what keeps one from running, how often it has failed, and when the next one is due."""
