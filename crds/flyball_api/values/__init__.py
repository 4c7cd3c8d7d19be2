"""What objects are made of: units, times, quantities, conditions, label selectors."""
