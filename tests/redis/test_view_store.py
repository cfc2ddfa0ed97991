"""Redis keeps the contract of every ViewStore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.contracts import ViewStoreContract
from leftfold.redis import RedisViewStore
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


class TestRedisViewStore(ViewStoreContract):
    """The contract on a real server."""

    @pytest.fixture
    def store(self, server: RedisServer) -> Iterator[RedisViewStore]:
        """A store that is closed after the test."""
        store = RedisViewStore(server.settings)
        yield store
        store.close()
