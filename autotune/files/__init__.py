"""Errors, and how files and arguments of others are read and written: what every room stands on."""
