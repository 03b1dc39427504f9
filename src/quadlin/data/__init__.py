"""Where rows come from and how they become numbers: sources, columns, engines, Dask and GPUs.

Imports `core`.
Gives the others `open_source` and `Source`, the encoder of text columns, and the engines that
compute sums on threads, on a GPU or on a cluster.

A source reads its rows in steps: `opening` finds out what was given; units of a format (`tables`,
`lines`, `arrays`, `dask_rows`) yield pieces as they are stored; `reader` turns them into numbers,
text by `columns`; `source` joins them to chunks of equal size. A new format of files is a `Unit`
in a module of its own, which adds it to `source.FORMATS`, and an import of it in `opening`.
"""

from quadlin.core.chunks import is_dask
from quadlin.data.names import SourceError
from quadlin.data.opening import open_source
from quadlin.data.source import Source

__all__ = ["Source", "SourceError", "is_dask", "open_source"]
