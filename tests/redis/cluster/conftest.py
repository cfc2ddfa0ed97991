"""A cluster that is whole at the start of every test, a store on it and an empty generation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leftfold.ports.flush import Generation
from leftfold.redis import RedisViewStore
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import new_spread


@pytest.fixture(autouse=True)
def everything_runs(cluster: ClusterSet) -> None:
    """Every test begins with a cluster that is whole."""
    cluster.bring_back()


@pytest.fixture
def store(cluster: ClusterSet, stores: Callable[..., RedisViewStore]) -> RedisViewStore:
    """A store on it."""
    return stores(cluster.settings)


@pytest.fixture
def generation(cluster: ClusterSet, store: RedisViewStore) -> Generation:
    """An empty generation with buckets on every master."""
    return new_spread(cluster, store)
