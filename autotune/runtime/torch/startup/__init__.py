"""What processes of a routed program import by its name at their start. Copied into exported tables."""
