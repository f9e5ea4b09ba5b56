"""What is believed before it is measured: pure functions of kernels, shapes and a GPU, on whole arrays."""
