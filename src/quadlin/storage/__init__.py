"""What is written to disk and read back with everything checked: tensor files and checkpoints.

Imports `data`, `stream`, `solve` and `core`.
Gives the estimators checkpoints of fits and of streams, and `export` the format of model files.
"""

from quadlin.storage.identity import CheckpointError
from quadlin.storage.journal import Journal, checkpointed
from quadlin.storage.stream_checkpoint import keeping

__all__ = ["CheckpointError", "Journal", "checkpointed", "keeping"]
