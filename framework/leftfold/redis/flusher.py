"""The flush protocol: many buckets in one Redis transaction, fenced by their tokens, in one round trip."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from threading import Lock, RLock
from typing import Any, TypeAlias

from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Generation, Landed
from leftfold.ports.protocols import Flushing
from leftfold.redis.connection.errors import executed, refuse_errors, unreachable
from leftfold.redis.connection.protocol import (
    EXEC,
    MULTI,
    UNWATCH,
    Connector,
    RawConnection,
    RowPacker,
    SortedSets,
    connect,
    packed,
)
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.topology import Topology, open_connection, topology_of
from leftfold.redis.keys import BucketKeys, channel
from leftfold.redis.stored_values import POSITION_KEPT, addition, encode_checkpoint

__all__ = ["Flusher", "Flushers", "PendingFlush", "commands_of"]


class PendingFlush:
    """A flush that was sent; its replies are read by `landed`, or before its flusher begins the next flush."""

    def __init__(self, flusher: Flusher, checkpoints: Sequence[bytes]) -> None:
        self._flusher, self.checkpoints = flusher, checkpoints
        self.commands, self.replies = list[bytes](), list[Any]()
        self.outcome: bool | BaseException | None = None

    def landed(self, within: float | None = None) -> bool:
        """Waits for the replies: True when everything is written, False when nothing is or the outcome is unknown.

        Args:
            within: seconds to wait, instead of those in the settings.
        """
        self._flusher.complete(self, within)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return bool(self.outcome)


class Flusher:
    """Flushes one set of buckets over its own connection, which keeps their checkpoints watched between flushes.

    WATCH alone fences no writer: it reports changes since the WATCH, not since this writer's last flush. So the token
    read behind each WATCH is compared with the one the writer expects before anything is sent. EXEC ends every WATCH,
    therefore the next WATCH and token reads follow it in the same write.

    Args:
        topology: where the server is, shared with other clients; in a cluster all buckets must be in one slot.
    """

    def __init__(self, settings: RedisSettings, connect: Connector = connect, topology: Topology | None = None) -> None:
        self._settings, self._connect = settings, connect
        self._topology = topology or topology_of(settings)
        self._lock = RLock()
        self._connection: RawConnection | None = None
        self._tokens: dict[bytes, bytes | None] = {}
        """The tokens that were read behind the last WATCH."""
        self._pending: PendingFlush | None = None

    def begin(self, flushes: Sequence[BucketFlush]) -> PendingFlush:
        """Sends all flushes in one transaction; sends nothing if a token differs or a checkpoint is missing.

        The outcome is False when nothing was sent, and when the connection was lost. A connection lost after EXEC
        leaves the outcome unknown: the checkpoints then say what was written.

        Raises:
            InfrastructureError: the server cannot be reached or refuses to write, here or in `landed`; nothing was
                written.
            ConfigurationError: the user lacks a right.
        """
        with self._prepared(flushes) as (flush, connection):
            self._send(connection, flush, flushes)
            self._pending = flush if flush.outcome is None else None
        return flush

    def is_ready(self, flushes: Sequence[BucketFlush]) -> bool:
        """Whether `begin` would send this: no flush is under way any more, and the tokens are the expected ones.

        Tokens that differ are read again by the next call.

        Raises:
            InfrastructureError: as `begin`.
        """
        with self._prepared(flushes) as (flush, connection):
            self._read_tokens(connection, flush.checkpoints)
            if not self.has_expected_tokens(flushes, self._tokens):
                self._tokens, flush.outcome = {}, False
        return flush.outcome is None

    def complete(self, flush: PendingFlush, within: float | None = None) -> None:
        """Waits for the replies to a flush, unless its outcome is known."""
        with self._lock:
            if flush.outcome is not None:
                return
            self._pending = None
            with self._outcome_of(flush):
                if self._connection is None:
                    raise ConnectionResetError("closed")
                replies = flush.replies + self._connection.receive(within=within)
                self._store_tokens(flush.checkpoints, replies, [*flush.commands, *_watch(flush.checkpoints)])
                flush.outcome = executed(self._settings, replies[len(flush.commands) - 1], flush.commands)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection without a known failure."""
        return self._connection is not None

    @property
    def is_pending(self) -> bool:
        """Whether a flush was sent whose replies were not read yet."""
        return self._pending is not None

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._disconnect()

    def has_expected_tokens(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
        """Whether every checkpoint exists and has the token that its flush expects."""
        expected = {BucketKeys(f.generation, f.bucket).checkpoint: f.expected.encode() for f in flushes}
        return tokens == expected

    def commands(self, flushes: Sequence[BucketFlush]) -> list[bytes]:
        """The commands that these flushes write and publish, as one transaction."""
        history = self._settings.history
        changes = [command for flush in flushes for command in commands_of(flush, history)]
        return self.transaction([*changes, *notices(flushes)])

    def transaction(self, commands: list[bytes]) -> list[bytes]:
        """Commands wrapped in MULTI and EXEC."""
        return [MULTI, *commands, EXEC]

    def _send(self, connection: RawConnection, flush: PendingFlush, flushes: Sequence[BucketFlush]) -> None:
        self._read_tokens(connection, flush.checkpoints)
        tokens, self._tokens = self._tokens, {}
        if not self.has_expected_tokens(flushes, tokens):
            flush.outcome = False
            return
        flush.commands = self.commands(flushes)
        flush.replies = connection.begin(flush.commands + _watch(flush.checkpoints))

    @contextmanager
    def _prepared(self, flushes: Sequence[BucketFlush]) -> Iterator[tuple[PendingFlush, RawConnection]]:
        """A new flush and the connection for it, on which no other one is pending."""
        with self._lock:
            if self._pending is not None:
                self.complete(self._pending)
            flush = PendingFlush(self, [BucketKeys(f.generation, f.bucket).checkpoint for f in flushes])
            connection = self._connected(flush.checkpoints[0])
            with self._outcome_of(flush):
                yield flush, connection
            if isinstance(flush.outcome, BaseException):
                raise flush.outcome

    def _read_tokens(self, connection: RawConnection, checkpoints: Sequence[bytes]) -> None:
        """Watches the checkpoints and reads their tokens, unless the flush before did."""
        if self._tokens.keys() != set(checkpoints):
            commands = [UNWATCH, *_watch(checkpoints)]
            self._store_tokens(checkpoints, connection.exchange(commands), commands)

    @contextmanager
    def _outcome_of(self, flush: PendingFlush) -> Iterator[None]:
        """Sets the outcome of a flush after a lost connection or a refusal, and closes the connection."""
        try:
            yield
        except OSError as error:
            self._disconnect()
            self._topology.handle_error(error)
            flush.outcome = False
        except BaseException as error:
            self._disconnect()
            self._topology.handle_error(error)
            flush.outcome = error
            if not isinstance(error, Exception):
                raise

    def _store_tokens(self, checkpoints: Sequence[bytes], replies: Sequence[Any], commands: Sequence[bytes]) -> None:
        refuse_errors(self._settings, replies, commands)
        self._tokens = dict(zip(checkpoints, replies[-len(checkpoints) :], strict=True))

    def _connected(self, key: bytes) -> RawConnection:
        if self._connection is None:
            try:
                self._connection = open_connection(self._topology, key, self._connect)
            except OSError as error:
                self._topology.handle_error(error)
                raise unreachable(self._settings, error) from error
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._pending is not None:
            self._pending.outcome = False
        self._connection, self._tokens, self._pending = None, {}, None


def _watch(checkpoints: Sequence[bytes]) -> list[bytes]:
    return [packed(b"WATCH", *checkpoints), *(packed(b"HGET", checkpoint, b"token") for checkpoint in checkpoints)]


def notices(flushes: Sequence[BucketFlush]) -> Iterator[bytes]:
    """The PUBLISH commands that announce a generation's new position; one message for all buckets."""
    announced: dict[bytes, list[Position]] = {}
    for flush in flushes:
        announced.setdefault(channel(flush.generation.view, flush.generation.id), []).append(flush.checkpoint.position)
    for name, positions in announced.items():
        yield packed(b"PUBLISH", name, Position.union(positions).to_json().encode())


def commands_of(flush: BucketFlush, history: int) -> Iterator[bytes]:
    """The commands of a flush of one bucket: rows, key list, indexes, change stream, and the checkpoint last."""
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
    if flush.changes:
        changed, position = [change.key for change in flush.changes], flush.checkpoint.position
        for entry in (changed,) if flush.moves else (POSITION_KEPT, changed):
            yield packed(*addition(keys.changes, position, entry, history))
    yield packed(b"HSET", keys.checkpoint, *encode_checkpoint(flush.checkpoint))


NOTHING_WRITTEN = Landed(written=False)
_LEAST_SECONDS = 0.05
"""Seconds to wait for a reply that may have arrived, when other buckets have used up the timeout."""


class PendingFlushes:
    """The flushes of several buckets, each of which is written or not by itself.

    Args:
        errors: of buckets whose flush could not be sent. seconds: to wait for all of them together.
    """

    def __init__(self, flushes: Sequence[PendingFlush], errors: Sequence[Exception], seconds: float) -> None:
        self._flushes, self._errors, self._seconds = flushes, list(errors), seconds

    def landed(self) -> bool:
        """Waits for all of them: True when everything is written; otherwise the checkpoints say what is."""
        landed, deadline = [], time.monotonic() + self._seconds
        for flush in self._flushes:
            try:
                landed.append(flush.landed(max(_LEAST_SECONDS, deadline - time.monotonic())))
            except Exception as error:  # noqa: BLE001  # raised below, when nothing is pending any more
                self._errors.append(error)
        if self._errors:
            raise self._errors[0]
        return all(landed)


class BucketFlushers:
    """Flushes the buckets of one generation in a cluster, where each is in its own slot.

    EXEC ends every WATCH of its connection, and a transaction holds keys of one slot only. So each bucket has a flusher
    and a connection of its own, and flushes of different buckets do not wait for each other's replies. A writer that
    was fenced in one bucket sends nothing to any; only a failure while flushes are under way can leave some written.
    """

    def __init__(
        self, settings: RedisSettings, connect: Connector, flusher_class: type[Flusher], topology: Topology
    ) -> None:
        self._settings, self._connect, self._topology = settings, connect, topology
        self._flusher_class = flusher_class
        self._lock = Lock()
        self._flushers: dict[int, Flusher] = {}

    def begin(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Sends each bucket's flush to its node, but nothing at all when one token is not the expected one.

        Raises:
            InfrastructureError: a node cannot be reached; nothing was written.
        """
        pairs = [(self._of(flush.bucket), [flush]) for flush in flushes]
        if not self._are_ready(pairs):
            return NOTHING_WRITTEN
        pending: list[PendingFlush] = []
        errors: list[Exception] = []
        for flusher, flush in pairs:
            try:
                pending.append(flusher.begin(flush))
            except Exception as error:  # noqa: BLE001  # raised by `landed`: the others are pending
                errors.append(error)
        return PendingFlushes(pending, errors, self._settings.timeout)

    @property
    def is_pending(self) -> bool:
        """Whether a flush of any bucket is pending."""
        with self._lock:
            return any(flusher.is_pending for flusher in self._flushers.values())

    def close(self) -> None:
        """Closes every connection."""
        with self._lock:
            flushers, self._flushers = list(self._flushers.values()), {}
        for flusher in flushers:
            flusher.close()

    def _are_ready(self, pairs: Sequence[tuple[Flusher, Sequence[BucketFlush]]]) -> bool:
        """Whether all flushers are ready; all tokens are checked, since those that differ are read again next time."""
        ready = True
        for flusher, flush in pairs:
            ready = flusher.is_ready(flush) and ready
            if not flusher.is_connected:
                return False  # a node that hangs has no more answers for its other buckets
        return ready

    def _of(self, bucket: int) -> Flusher:
        with self._lock:
            flusher = self._flushers.get(bucket)
            if flusher is None:
                flusher = self._flushers[bucket] = self._flusher_class(self._settings, self._connect, self._topology)
            return flusher


_MOST_FLUSHERS, _IDLE_SECONDS = 64, 60.0
_Flusher: TypeAlias = Flusher | BucketFlushers


class Flushers:
    """Hands out flushers by generation; closes those without use for a minute when there are more than 64.

    Args:
        flusher_class: flushes the keys on one server. clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: RedisSettings,
        connect: Connector = connect,
        flusher_class: type[Flusher] = Flusher,
        topology: Topology | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._connect, self._flusher_class, self._clock = settings, connect, flusher_class, clock
        self._topology = topology or topology_of(settings)
        self._lock = Lock()
        self._flushers: dict[tuple[str, str], tuple[_Flusher, float]] = {}
        """Each with the time of its last use, the least recently used first."""

    def of(self, generation: Generation) -> _Flusher:
        """The flusher of a generation."""
        name, now = (generation.view, generation.id), self._clock()
        with self._lock:
            flusher = self._flushers.pop(name)[0] if name in self._flushers else self._new()
            self._flushers[name] = flusher, now
            idle = (n for n, (f, used) in self._flushers.items() if now - used > _IDLE_SECONDS and not f.is_pending)
            over = list(islice(idle, max(0, len(self._flushers) - _MOST_FLUSHERS)))
            closed = [self._flushers.pop(n)[0] for n in over]
        for other in closed:
            other.close()
        return flusher

    def forget(self, generation: Generation) -> None:
        """Closes a generation's flusher if there is one."""
        with self._lock:
            flusher, _ = self._flushers.pop((generation.view, generation.id), (None, 0.0))
        if flusher is not None:
            flusher.close()

    def close(self) -> None:
        """Closes all flushers."""
        with self._lock:
            flushers = [flusher for flusher, _ in self._flushers.values()]
            self._flushers.clear()
        for flusher in flushers:
            flusher.close()

    def _new(self) -> _Flusher:
        if self._topology.is_cluster:
            return BucketFlushers(self._settings, self._connect, self._flusher_class, self._topology)
        return self._flusher_class(self._settings, self._connect, self._topology)
