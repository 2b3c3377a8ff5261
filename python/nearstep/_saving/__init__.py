"""Saves and shows what outlives the process: state, checkpoints, exports, the program's own data."""
