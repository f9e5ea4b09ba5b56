"""Launches are timed where a table is used, once, and the fastest are kept.

Copied into exported tables.
"""
