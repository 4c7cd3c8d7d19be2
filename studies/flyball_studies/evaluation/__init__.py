"""The evaluation: the claims of PowerFlow's paper and this project's own, measured by one command (docs/evaluation.md)."""
