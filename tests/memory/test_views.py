from __future__ import annotations

import pytest

from leftfold.memory import MemoryViewStore
from leftfold.ports.protocols import ViewStore
from leftfold.testing.contracts import ViewStoreContract


class TestMemoryViewStore(ViewStoreContract):
    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryViewStore()
