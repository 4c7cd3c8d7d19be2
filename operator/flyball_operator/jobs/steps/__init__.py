"""What one cycle does about jobs: record what was decided, say how they stand, and close the books of those that ended."""
