"""The store of a lane's states keeps the contract."""

from __future__ import annotations

import pytest

from leftfold.contracts.state_store import StateStoreContract
from leftfold.memory.states import MemoryStates
from leftfold.ports import StateStore


class TestMemoryStates(StateStoreContract):
    @pytest.fixture
    def store(self) -> StateStore:
        return MemoryStates()
