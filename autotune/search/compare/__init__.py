"""Which kernel is the fastest of a shape: paired comparisons, the final, the one reported time."""
