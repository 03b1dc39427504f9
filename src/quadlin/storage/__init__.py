"""Files that are written atomically and checked when read: arrays and checkpoints.

Imports `data`, `stream`, `solve` and `core`.
Gives the estimators checkpoints of fits and of streams, and `export` the format of model files.
"""

from quadlin.storage.identity import CheckpointError
from quadlin.storage.journal import Journal, checkpointed
from quadlin.storage.stream_checkpoint import checkpointed_stream

__all__ = ["CheckpointError", "Journal", "checkpointed", "checkpointed_stream"]
