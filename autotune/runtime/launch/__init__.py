"""Plans of calls, the GPUs that they run on, and the calls of the driver. Copied into exported tables."""
