"""What of a run outlives the process."""
