"""Studies: methods replayed on measured data, and every figure drawn of them."""
