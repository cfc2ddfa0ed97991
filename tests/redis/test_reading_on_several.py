"""Searching and watching behind sentinels and in a cluster: the same answers as in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore
from tests.client.changes_contract import Watches
from tests.client.search_contract import Searches
from tests.redis.cluster_set import ClusterSet
from tests.redis.sentinel_set import SentinelSet

pytestmark = pytest.mark.servers


class TestReadingBehindSentinels(Searches, Watches):
    @pytest.fixture
    def store(self, sentinels: SentinelSet) -> Iterator[RedisViewStore]:
        store = RedisViewStore(sentinels.settings)
        yield store
        store.close()


class TestReadingInACluster(Searches, Watches):
    @pytest.fixture
    def store(self, cluster: ClusterSet) -> Iterator[RedisViewStore]:
        store = RedisViewStore(cluster.settings)
        yield store
        store.close()
