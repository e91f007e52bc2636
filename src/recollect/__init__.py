"""Recollect: one workflow that regenerates the results of four lines of research on memory in reinforcement learning."""

__version__ = "0.1.0"
