"""Products of torch's tensors: an operator, a router below unmodified programs, their report.

Copied into exported tables.
"""
