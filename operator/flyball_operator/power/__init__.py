"""The power promise: what each node may draw at worst, what it should be granted, and what of that may be sent now."""
