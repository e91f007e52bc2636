"""Frozen language models that read step by step, and the memory that each of them is."""
