"""Several attempts of one task of a rebuild: the first result that is noted counts, and no attempt fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leftfold.ports.bulk import BucketResult
from leftfold.ports.flush import Generation
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.testing.contracts.readers import COLUMNS
from tests.redis.server import RedisServer
from tests.redis.test_bulk_sink import INDEXES, bulk_rows, final, generation

pytestmark = pytest.mark.servers

__all__ = ["generation"]  # a fixture

ROWS = 1100
SENDS = range(1, 7)
"""Of one attempt: a look at the checkpoint, three chunks, another look, the note that the bucket is whole."""


class Overtaken(RedisBulkSink):
    """A sink that lets another attempt run right before one of its sends."""

    def __init__(self, server: RedisServer, send: int, other: Callable[[], object]) -> None:
        super().__init__(server.settings)
        self._left, self._other = send, other

    def _send(self, checkpoint: bytes, commands: list[bytes]) -> None:
        self._left -= 1
        if self._left == 0:
            self._other()
        super()._send(checkpoint, commands)


def attempt(sink: RedisBulkSink, generation: Generation, time: str) -> BucketResult:
    """Writes a bucket to its end; the time says which attempt it was."""
    with sink:
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(ROWS))
        return sink.finish(generation, BucketResult(0, 7, ROWS, time))


@pytest.mark.parametrize("send", SENDS)
def test_an_attempt_that_is_overtaken_at_any_point_returns_what_the_faster_one_noted(
    server: RedisServer, store: RedisViewStore, generation: Generation, send: int
) -> None:
    faster = Overtaken(server, send, lambda: attempt(RedisBulkSink(server.settings), generation, "faster"))
    assert attempt(faster, generation, "slower").time == "faster"
    assert store.finished(generation)[0].time == "faster"
    store.seal(generation, {0: final(ROWS), 1: final(0)})
    assert len(store.keys(generation, 0, "", 9999)) == ROWS


@pytest.mark.parametrize("send", SENDS)
def test_an_attempt_that_dies_beside_another_one_changes_nothing(
    server: RedisServer, store: RedisViewStore, generation: Generation, send: int
) -> None:
    def die() -> None:
        with RedisBulkSink(server.settings) as sink:
            sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(ROWS // 2))

    assert attempt(Overtaken(server, send, die), generation, "slower").time == "slower"
    store.seal(generation, {0: final(ROWS), 1: final(0)})
    assert len(store.keys(generation, 0, "", 9999)) == ROWS


def test_a_bucket_that_is_whole_is_not_written_again(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    attempt(RedisBulkSink(server.settings), generation, "first")
    with RedisBulkSink(server.settings) as sink:
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(1, "other"))
    assert len(store.keys(generation, 0, "", 9999)) == ROWS
