"""Sums over rows on a GPU: transfers of rows, and Triton kernels.

Imports `sources` (for reading ahead).
Gives `opening` the engine of a GPU.
"""
