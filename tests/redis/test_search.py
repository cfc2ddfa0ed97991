"""Searches on a real server: the same answers as in memory, and how many round trips they take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore
from tests.client.search_contract import Searches
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


class TestSearchesInRedis(Searches):
    @pytest.fixture
    def store(self, server: RedisServer) -> Iterator[RedisViewStore]:
        store = RedisViewStore(server.settings)
        yield store
        store.close()
