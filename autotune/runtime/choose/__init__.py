"""Which kernel of a table serves a call, and why. Copied into exported tables."""
