"""What to try next, given what is known: no GPU, no store, no clock."""
