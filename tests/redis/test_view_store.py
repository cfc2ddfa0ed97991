"""Redis keeps the contract of every ViewStore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.ports.flush import BucketFlush, Generation, Registry, While
from leftfold.ports.protocols import ViewStore
from leftfold.redis import RedisViewStore
from leftfold.testing.contracts import ViewStoreContract
from leftfold.testing.contracts.readers import checkpoint
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

    @pytest.mark.parametrize("depends", [True, False], ids=["", "twin"])
    def test_the_registry_does_not_change_over_a_flush(
        self, store: ViewStore, generation: Generation, depends: bool
    ) -> None:
        """In a cluster it does: the checkpoint of a bucket and the registry are on different servers there."""

        def holds() -> bool:
            found = store.checkpoints(generation)[0]
            return store.flush([BucketFlush(generation, 0, found.token, checkpoint("next", 1), (), ())])

        if not depends:
            assert holds()
        one, while_ = Registry().with_generation(generation), While(generation, holds)
        assert store.change_registry(generation.view, Registry(), one, while_ if depends else None) is not depends
