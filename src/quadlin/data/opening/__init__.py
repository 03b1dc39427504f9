"""From anything that holds rows to a source of them, and from a name to the engine that adds up.

Imports the other rooms of `data`.
Gives the library `open_source`, and the engines on threads, a GPU or a Dask cluster.
"""
