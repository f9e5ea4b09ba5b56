"""autotune: finds the best FP32 matrix product kernel for this GPU and these shapes."""

__version__ = "0.1.0"
