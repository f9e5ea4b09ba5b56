"""An exported table: how it is read, and what it must obey. Copied into exported tables."""
