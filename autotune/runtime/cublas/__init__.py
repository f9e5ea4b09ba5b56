"""cuBLAS beside the kernels of a table. Copied into exported tables."""
