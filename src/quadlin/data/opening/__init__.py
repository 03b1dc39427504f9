"""Opens anything that holds rows, and chooses the engine that computes sums over them.

Imports the other rooms of `data`.
Gives the library `open_source`, and the engines on threads, a GPU or a Dask cluster.
"""
