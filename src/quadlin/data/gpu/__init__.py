"""Sums over rows on a GPU: rows on their way to it, and kernels of Triton.

Imports `sources` (for reading ahead).
Gives `opening` the engine of a GPU.
"""
