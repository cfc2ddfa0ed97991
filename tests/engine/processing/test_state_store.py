"""The store of a processor's states keeps the contract."""

from __future__ import annotations

import pytest

from leftfold.engine.processing.stream_state import MemoryStates
from leftfold.ports.protocols import StateStore
from leftfold.testing.contracts.state_store import StateStoreContract


class TestMemoryStates(StateStoreContract):
    @pytest.fixture
    def store(self) -> StateStore:
        return MemoryStates()
