from __future__ import annotations

import pytest

from leftfold.contracts import ViewStoreContract
from leftfold.memory import MemoryViewStore
from leftfold.ports import ViewStore


class TestMemoryViewStore(ViewStoreContract):
    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryViewStore()
