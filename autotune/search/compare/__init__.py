"""Who is the fastest of a shape: paired comparisons, the final, the one time that is told."""
