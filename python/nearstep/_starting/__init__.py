"""Settings and values that a run starts from."""
