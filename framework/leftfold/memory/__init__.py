"""Reference adapters in memory: the whole loop without servers, for tests and for adapter writers to read."""

from __future__ import annotations

from leftfold.engine.processing.stream_state import MemoryStates
from leftfold.memory.event_log import MemoryLog
from leftfold.memory.views import MemoryViewStore
from leftfold.memory.world import World, memory

__all__ = ["MemoryLog", "MemoryStates", "MemoryViewStore", "World", "memory"]
