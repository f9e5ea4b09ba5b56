"""The core in C: its library, a table opened in it, what its statuses mean. Copied into exported tables."""
