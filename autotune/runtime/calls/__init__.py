"""The arrays of a call: read, understood, enqueued. Copied into exported tables."""
