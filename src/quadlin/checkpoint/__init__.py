"""Fits and streams that survive a kill."""

from quadlin.checkpoint.identity import CheckpointError
from quadlin.checkpoint.journal import Journal, checkpointed
from quadlin.checkpoint.keeper import keeping

__all__ = ["CheckpointError", "Journal", "checkpointed", "keeping"]
