"""Reference adapters in memory: the whole loop without servers, for tests and for adapter writers to read."""

from __future__ import annotations

from leftfold.memory.log import MemoryLog
from leftfold.memory.states import MemoryStates
from leftfold.memory.views import MemoryViewStore
from leftfold.memory.world import World, memory

__all__ = ["MemoryLog", "MemoryStates", "MemoryViewStore", "World", "memory"]
