"""How a search runs: points under way, idle seconds of the GPU, limits and signals."""
