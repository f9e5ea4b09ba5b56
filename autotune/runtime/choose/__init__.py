"""Which kernel of a table serves a call, or cuBLAS, and why. Copied into exported tables."""
