"""Adapters in memory: the engine's loops without servers, for tests and as a reference for adapter authors."""

from __future__ import annotations

from leftfold.memory.event_log import MemoryLog
from leftfold.memory.views import MemoryViewStore
from leftfold.memory.world import World, memory

__all__ = ["MemoryLog", "MemoryViewStore", "World", "memory"]
