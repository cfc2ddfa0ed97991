"""Watching on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore
from tests.core.watches import Watches
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


class TestWatchesInRedis(Watches):
    @pytest.fixture
    def store(self, server: RedisServer) -> Iterator[RedisViewStore]:
        store = RedisViewStore(server.settings)
        yield store
        store.close()
