"""Pure facts: problems, devices, measurements and what is decided from them alone."""
