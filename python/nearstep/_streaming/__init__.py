"""Models whose parameters do not fit the GPU."""
