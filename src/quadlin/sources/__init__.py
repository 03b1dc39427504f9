"""Where rows come from: a source is walked again and again, a chunk at a time."""

from quadlin.sources.memory import Chunk, MemorySource

__all__ = ["Chunk", "MemorySource"]
