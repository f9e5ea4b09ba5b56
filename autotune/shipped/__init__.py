"""What the shipped matrices give: starting points of searches, and figures."""
