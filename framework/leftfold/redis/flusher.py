"""The flush protocol: many buckets in one transaction, fenced by their tokens, in one round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

from leftfold.flush import BucketFlush
from leftfold.redis.failures import executed, refuse_errors, unreachable
from leftfold.redis.keys import BucketKeys
from leftfold.redis.marks import encode_mark
from leftfold.redis.packing import EXEC, MULTI, UNWATCH, RowPacker, SortedSets, packed
from leftfold.redis.settings import RedisSettings
from leftfold.redis.wire import Dial, Wire, dial

__all__ = ["Flusher", "commands_of"]


class Flusher:
    """Flushes one set of buckets over its own connection, which keeps their marks watched between flushes.

    WATCH alone fences nobody: it says that nothing changed since the WATCH, not since this writer's last flush. So the
    token behind each WATCH is compared with the one the writer expects before anything is sent. EXEC ends every WATCH,
    therefore the next WATCH and token reads ride behind it in the same write.
    """

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self._settings, self._dial = settings, dial
        self._lock = Lock()
        self._wire: Wire | None = None
        self._seen: dict[bytes, bytes | None] = {}

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """Writes everything, or nothing and answers False: another writer's token, a lost mark, a lost connection.

        A connection lost behind EXEC leaves the outcome unknown; that is False too, because the marks then tell.

        Raises:
            InfrastructureError: the server cannot be reached or refuses to write; nothing was written.
        """
        with self._lock:
            wire = self._connected()
            try:
                return self._flushed(wire, flushes)
            except OSError:
                self._drop()
                return False
            except BaseException:
                self._drop()
                raise

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._drop()

    def still_mine(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
        """Whether every mark is there and has the token that its flush expects."""
        expected = {BucketKeys(f.generation, f.bucket).mark: f.expected.encode() for f in flushes}
        return tokens == expected

    def _flushed(self, wire: Wire, flushes: Sequence[BucketFlush]) -> bool:
        marks = [BucketKeys(flush.generation, flush.bucket).mark for flush in flushes]
        if self._seen.keys() != set(marks):
            self._remember(marks, wire.exchange([UNWATCH, *_watch(marks)]))
        tokens, self._seen = self._seen, {}
        if not self.still_mine(flushes, tokens):
            return False
        commands = [MULTI, *(command for flush in flushes for command in commands_of(flush)), EXEC]
        sent = len(commands)
        replies = wire.exchange(commands + _watch(marks))
        self._remember(marks, replies)
        return executed(replies[sent - 1])

    def _remember(self, marks: Sequence[bytes], replies: Sequence[Any]) -> None:
        refuse_errors(self._settings, replies)
        self._seen = dict(zip(marks, replies[-len(marks) :], strict=True))

    def _connected(self) -> Wire:
        if self._wire is None:
            try:
                self._wire = Wire(self._settings, self._dial)
            except OSError as error:
                raise unreachable(self._settings, error) from error
        return self._wire

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire, self._seen = None, {}


def _watch(marks: Sequence[bytes]) -> list[bytes]:
    return [packed(b"WATCH", *marks), *(packed(b"HGET", mark, b"token") for mark in marks)]


def commands_of(flush: BucketFlush) -> Iterator[bytes]:
    """What a flush does to one bucket: rows, key list, indexes, and the mark last."""
    keys = BucketKeys(flush.generation, flush.bucket)
    rows, sets = RowPacker(keys, flush.columns), SortedSets(keys, flush.indexes)
    for change in flush.changes:
        if change.fields is None:
            yield rows.drop(change.key)
        else:
            yield rows.put(change.key, change.fields, change.version)
        if (change.before is None) is not (change.fields is None):
            sets.list(change.key, change.fields is not None)
        sets.move(change.key, change.before, change.after)
    yield from sets.commands()
    yield packed(b"HSET", keys.mark, *encode_mark(flush.mark))
