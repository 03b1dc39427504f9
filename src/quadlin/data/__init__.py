"""Where rows come from and how they become numbers: sources, text columns, fields, Dask.

Imports `core`.
Gives the others `open_source` and `Source`, the encoder of text columns, and the engines that
compute sums on threads or on a cluster.
"""

from quadlin.core.chunks import is_dask
from quadlin.data.columns.errors import SourceError
from quadlin.data.opening.opening import open_source
from quadlin.data.sources.source import Source

__all__ = ["Source", "SourceError", "is_dask", "open_source"]
