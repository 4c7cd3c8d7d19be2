"""How far the fitted models are from what was measured: the figures of docs/models.md."""
