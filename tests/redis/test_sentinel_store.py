"""A master behind sentinels keeps the contract of every ViewStore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore
from leftfold.testing.contracts import ViewStoreContract
from tests.redis.sentinel_set import SentinelSet

pytestmark = pytest.mark.servers


class TestSentinelViewStore(ViewStoreContract):
    """The contract on whichever server leads."""

    @pytest.fixture
    def store(self, sentinels: SentinelSet) -> Iterator[RedisViewStore]:
        """A store that is closed after the test."""
        store = RedisViewStore(sentinels.settings)
        yield store
        store.close()
