"""Gradients on their way from backward to the engine."""
