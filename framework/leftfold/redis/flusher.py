"""The flush protocol: many buckets in one Redis transaction, fenced by their tokens, in one round trip."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any, TypeAlias

from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Generation, Landed
from leftfold.ports.protocols import Flushing
from leftfold.redis.connection.errors import executed, refuse_errors, unreachable
from leftfold.redis.connection.protocol import EXEC, MULTI, UNWATCH, Dial, RowPacker, SortedSets, Wire, dial, packed
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.topology import Topology, topology_of
from leftfold.redis.keys import BucketKeys, channel
from leftfold.redis.stored_values import addition, encode_mark

__all__ = ["Flight", "Flusher", "Flushers", "commands_of"]


class Flight:
    """A flush under way; its replies are read by `landed`, or before its flusher begins the next flush."""

    def __init__(self, flusher: Flusher, checkpoints: Sequence[bytes]) -> None:
        self._flusher, self.checkpoints = flusher, checkpoints
        self.commands, self.replies = list[bytes](), list[Any]()
        self.outcome: bool | BaseException | None = None

    def landed(self, within: float | None = None) -> bool:
        """Waits for the replies: True when everything is written, False when nothing is or the outcome is unknown.

        Args:
            within: seconds to wait, instead of those in the settings.
        """
        self._flusher.land(self, within)
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

    def __init__(self, settings: RedisSettings, dial: Dial = dial, topology: Topology | None = None) -> None:
        self._settings, self._dial = settings, dial
        self._topology = topology or topology_of(settings, dial)
        self._lock = RLock()
        self._wire: Wire | None = None
        self._seen: dict[bytes, bytes | None] = {}
        self._flight: Flight | None = None

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """`begin`, and waits for it to land."""
        return self.begin(flushes).landed()

    def begin(self, flushes: Sequence[BucketFlush]) -> Flight:
        """Sends all flushes in one transaction; sends nothing if a token differs or a checkpoint is missing.

        A flight of which nothing was sent lands as False, as does one whose connection was lost. A connection lost
        after EXEC leaves the outcome unknown: the checkpoints then say what was written.

        Raises:
            InfrastructureError: the server cannot be reached or refuses to write, here or when it lands; nothing was
                written.
            ConfigurationError: the user lacks a right.
        """
        with self._lock:
            if self._flight is not None:
                self.land(self._flight)
            flight = Flight(self, [BucketKeys(f.generation, f.bucket).checkpoint for f in flushes])
            wire = self._connected(flight.checkpoints[0])
            with self._settling(flight):
                self._send(wire, flight, flushes)
            if isinstance(flight.outcome, BaseException):
                raise flight.outcome
            self._flight = flight if flight.outcome is None else None
            return flight

    def is_ready(self, flushes: Sequence[BucketFlush]) -> bool:
        """Whether `begin` would send this: no flush is under way any more, and the tokens are the expected ones.

        Tokens that differ are read again by the next call.

        Raises:
            InfrastructureError: as `begin`.
        """
        with self._lock:
            if self._flight is not None:
                self.land(self._flight)
            flight = Flight(self, [BucketKeys(f.generation, f.bucket).checkpoint for f in flushes])
            wire = self._connected(flight.checkpoints[0])
            with self._settling(flight):
                self._look(wire, flight.checkpoints)
            if isinstance(flight.outcome, BaseException):
                raise flight.outcome
            ready = flight.outcome is None and self.still_mine(flushes, self._seen)
            if not ready:
                self._seen = {}
            return ready

    def land(self, flight: Flight, within: float | None = None) -> None:
        """Waits for the replies to a flight, unless its outcome is known."""
        with self._lock:
            if flight.outcome is not None:
                return
            self._flight = None
            with self._settling(flight):
                if self._wire is None:
                    raise ConnectionResetError("closed")
                replies = flight.replies + self._wire.receive(within=within)
                self._remember(flight.checkpoints, replies, [*flight.commands, *_watch(flight.checkpoints)])
                flight.outcome = executed(self._settings, replies[len(flight.commands) - 1], flight.commands)

    @property
    def connected(self) -> bool:
        """Whether there is a connection without a known failure."""
        return self._wire is not None

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._drop()

    def still_mine(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
        """Whether every checkpoint exists and has the token that its flush expects."""
        expected = {BucketKeys(f.generation, f.bucket).checkpoint: f.expected.encode() for f in flushes}
        return tokens == expected

    def commands(self, flushes: Sequence[BucketFlush]) -> list[bytes]:
        """The commands that these flushes write and publish, as one transaction."""
        history = self._settings.history
        changes = [command for flush in flushes for command in commands_of(flush, history)]
        return self.at_once([*changes, *notices(flushes)])

    def at_once(self, commands: list[bytes]) -> list[bytes]:
        """Commands wrapped in MULTI and EXEC."""
        return [MULTI, *commands, EXEC]

    def _send(self, wire: Wire, flight: Flight, flushes: Sequence[BucketFlush]) -> None:
        checkpoints = flight.checkpoints
        self._look(wire, checkpoints)
        tokens, self._seen = self._seen, {}
        if not self.still_mine(flushes, tokens):
            flight.outcome = False
            return
        flight.commands = self.commands(flushes)
        flight.replies = wire.begin(flight.commands + _watch(checkpoints))

    def _look(self, wire: Wire, checkpoints: Sequence[bytes]) -> None:
        """Watches the checkpoints and reads their tokens, unless the flush before did."""
        if self._seen.keys() != set(checkpoints):
            commands = [UNWATCH, *_watch(checkpoints)]
            self._remember(checkpoints, wire.exchange(commands), commands)

    @contextmanager
    def _settling(self, flight: Flight) -> Iterator[None]:
        """Sets the outcome of a flight after a lost connection or a refusal, and drops the connection."""
        try:
            yield
        except OSError as error:
            self._drop()
            self._topology.met(error)
            flight.outcome = False
        except BaseException as error:
            self._drop()
            self._topology.met(error)
            flight.outcome = error
            if not isinstance(error, Exception):
                raise

    def _remember(self, checkpoints: Sequence[bytes], replies: Sequence[Any], commands: Sequence[bytes]) -> None:
        refuse_errors(self._settings, replies, commands)
        self._seen = dict(zip(checkpoints, replies[-len(checkpoints) :], strict=True))

    def _connected(self, key: bytes) -> Wire:
        if self._wire is None:
            try:
                self._wire = self._topology.wire(key, self._dial)
            except OSError as error:
                self._topology.met(error)
                raise unreachable(self._settings, error) from error
        return self._wire

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
        if self._flight is not None:
            self._flight.outcome = False
        self._wire, self._seen, self._flight = None, {}, None


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
        yield packed(
            *addition(keys.changes, flush.checkpoint.position, (change.key for change in flush.changes), history)
        )
    yield packed(b"HSET", keys.checkpoint, *encode_mark(flush.checkpoint))


NOTHING_WRITTEN = Landed(written=False)
_LEAST = 0.05
"""Seconds to wait for a reply that may have arrived, when other buckets have used up the timeout."""


class Flights:
    """The flushes of several buckets, each of which lands or not by itself.

    Args:
        errors: of buckets whose flush could not be sent. patience: seconds for all of them together.
    """

    def __init__(self, flights: Sequence[Flight], errors: Sequence[Exception], patience: float) -> None:
        self._flights, self._errors, self._patience = flights, list(errors), patience

    def landed(self) -> bool:
        """Waits for all of them: True when everything is written; otherwise the checkpoints say what is."""
        landed, deadline = [], time.monotonic() + self._patience
        for flight in self._flights:
            try:
                landed.append(flight.landed(max(_LEAST, deadline - time.monotonic())))
            except Exception as error:  # noqa: BLE001  # raised below, when nothing is under way any more
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

    def __init__(self, settings: RedisSettings, dial: Dial, made: type[Flusher], topology: Topology) -> None:
        self._settings, self._dial, self._made, self._topology = settings, dial, made, topology
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
        flights: list[Flight] = []
        errors: list[Exception] = []
        for flusher, flush in pairs:
            try:
                flights.append(flusher.begin(flush))
            except Exception as error:  # noqa: BLE001  # raised by `landed`: the others are under way
                errors.append(error)
        return Flights(flights, errors, self._settings.timeout)

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
            if not flusher.connected:
                return False  # a node that hangs has no more answers for its other buckets
        return ready

    def _of(self, bucket: int) -> Flusher:
        with self._lock:
            flusher = self._flushers.get(bucket)
            if flusher is None:
                flusher = self._flushers[bucket] = self._made(self._settings, self._dial, self._topology)
            return flusher


_MOST = 64
_Flusher: TypeAlias = Flusher | BucketFlushers


class Flushers:
    """Hands out flushers by generation; the least recently used are closed when there are too many.

    Args:
        made: makes a flusher for keys on one server.
    """

    def __init__(
        self, settings: RedisSettings, dial: Dial, made: type[Flusher] = Flusher, topology: Topology | None = None
    ) -> None:
        self._settings, self._dial, self._made = settings, dial, made
        self._topology = topology or topology_of(settings, dial)
        self._lock = Lock()
        self._flushers: dict[tuple[str, str], _Flusher] = {}

    def of(self, generation: Generation) -> _Flusher:
        """The flusher of a generation."""
        name = generation.view, generation.id
        with self._lock:
            flusher = self._flushers.pop(name, None) or self._new()
            self._flushers[name] = flusher
            if len(self._flushers) > _MOST:
                self._flushers.pop(next(iter(self._flushers))).close()
        return flusher

    def forget(self, generation: Generation) -> None:
        """Closes a generation's flusher if there is one."""
        with self._lock:
            flusher = self._flushers.pop((generation.view, generation.id), None)
        if flusher is not None:
            flusher.close()

    def close(self) -> None:
        """Closes all flushers."""
        with self._lock:
            flushers = list(self._flushers.values())
            self._flushers.clear()
        for flusher in flushers:
            flusher.close()

    def _new(self) -> _Flusher:
        if self._topology.spread:
            return BucketFlushers(self._settings, self._dial, self._made, self._topology)
        return self._made(self._settings, self._dial, self._topology)
