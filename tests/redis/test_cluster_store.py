"""A cluster keeps the contract of every ViewStore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore, refuse_eviction
from leftfold.testing.contracts import ViewStoreContract
from tests.redis.cluster_set import ClusterSet

pytestmark = pytest.mark.servers


class TestClusterViewStore(ViewStoreContract):
    """The contract on three masters."""

    @pytest.fixture
    def store(self, cluster: ClusterSet) -> Iterator[RedisViewStore]:
        """A store that is closed after the test."""
        store = RedisViewStore(cluster.settings)
        yield store
        store.close()


def test_every_master_says_whether_it_evicts(cluster: ClusterSet) -> None:
    assert refuse_eviction(cluster.settings) == "noeviction"
