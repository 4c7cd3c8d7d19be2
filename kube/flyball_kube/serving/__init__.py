"""What our own HTTP servers guard against."""
