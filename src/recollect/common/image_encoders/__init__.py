"""Frozen encoders of images, one per file."""
