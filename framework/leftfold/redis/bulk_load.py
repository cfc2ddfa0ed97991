"""Bulk load of a rebuild: writes the rows of its buckets, and seals them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import redis

from leftfold.errors import Fenced, InfrastructureError
from leftfold.model.row_codec import Fields
from leftfold.ports.bulk import BucketResult, BulkRow
from leftfold.ports.flush import Checkpoint, Generation, Phase
from leftfold.ports.protocols import Closing
from leftfold.redis.connection.errors import (
    Pipeline,
    SlotMoved,
    executed,
    refuse_errors,
    translated,
    unreachable,
)
from leftfold.redis.connection.protocol import (
    EXEC,
    MULTI,
    UNWATCH,
    Connector,
    RawConnection,
    RowPacker,
    SortedSets,
    chunks,
    connect,
    packed,
)
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.sync import PAUSE, RoutedClient
from leftfold.redis.connection.topology import open_connection, topology_of
from leftfold.redis.keys import FINISHED, BucketKeys
from leftfold.redis.stored_values import addition, encode_checkpoint

__all__ = ["RedisBulkSink", "seal"]


_ATTEMPTS = 5


def seal(client: RoutedClient, generation: Generation, checkpoints: Mapping[int, Checkpoint], history: int) -> None:
    """Writes checkpoints of some buckets with the phase `sealed`, in one transaction; in a cluster of one bucket.

    Their change streams begin here. Buckets can be sealed one by one: a late chunk is written under a WATCH of its own
    bucket's checkpoint, and no projector follows the generation before the registry says that all of it is sealed.

    Raises:
        Fenced: a bucket is no longer `bulk`. InfrastructureError: a bucket holds another number of rows than its
        checkpoint says; something was lost or is unfinished.
    """
    for attempt in range(_ATTEMPTS):
        # A connection that is lost under WATCH is a WatchError, too, and its EXEC may have run.
        if attempt and _is_sealed(client, generation, checkpoints):
            return
        try:
            with client.open_transaction(BucketKeys(generation, min(checkpoints)).checkpoint) as pipe:
                _check(pipe, generation, checkpoints)
                pipe.multi()
                for bucket, checkpoint in checkpoints.items():
                    fields = encode_checkpoint(replace(checkpoint, phase=Phase.SEALED))
                    keys = BucketKeys(generation, bucket)
                    pipe.execute_command("HSET", keys.checkpoint, *fields)
                    pipe.execute_command("HDEL", keys.checkpoint, FINISHED)
                    pipe.execute_command(*addition(keys.changes, checkpoint.position, (), history))
                pipe.execute()
                return
        except redis.WatchError:
            continue
    raise InfrastructureError(f"{generation.view} {generation.id} is still being written; end its tasks, then seal it")


def _is_sealed(client: RoutedClient, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> bool:
    """Whether these very checkpoints are sealed: each has a random token."""
    asked = [("HMGET", BucketKeys(generation, bucket).checkpoint, "phase", "token") for bucket in checkpoints]
    sealed = Phase.SEALED.value.encode()
    return client.execute(asked) == [[sealed, checkpoint.token.encode()] for checkpoint in checkpoints.values()]


def _check(pipe: Pipeline, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
    places = {bucket: BucketKeys(generation, bucket) for bucket in checkpoints}
    pipe.watch(*(name for keys in places.values() for name in (keys.checkpoint, keys.listed)))
    for bucket, keys in places.items():
        where = f"bucket {bucket} of {generation.view} {generation.id}"
        phase: Any = pipe.execute_command("HGET", keys.checkpoint, "phase")
        if phase != Phase.BULK.value.encode():
            raise Fenced(
                f"{where} is {phase.decode() if phase else 'missing'}, not bulk; another process sealed or removed it"
            )
        rows: Any = pipe.execute_command("ZCARD", keys.listed)
        if rows != checkpoints[bucket].rows:
            raise InfrastructureError(
                f"{where} holds {rows} rows where its tasks wrote {checkpoints[bucket].rows}; "
                f"build it again from the start: leftfold rebuild {generation.view} --fresh"
            )


CHUNK_ROWS = 500
CHUNK_BYTES = 512 * 1024


class RedisBulkSink(Closing):
    """Writes rows of buckets whose checkpoint says `bulk`, chunk by chunk; for one thread.

    Each chunk is a transaction under a WATCH of the checkpoint. A chunk is packed while the server works on the one
    before, but sent only after the reply behind that one's EXEC said `bulk`: with two in flight, one could land after a
    seal. Several attempts of one task write the same rows. The first to store its result in the checkpoint wins; the
    others see it at their next chunk, stop writing and return that result. A chunk that hit a moving slot of a cluster
    was not written, and is sent again to the node that has the bucket then.
    """

    def __init__(self, settings: RedisSettings, connect: Connector = connect) -> None:
        self._settings, self._connect = settings, connect
        self._topology = topology_of(settings)
        self._connection: RawConnection | None = None
        self._server = ""
        self._pending: list[bytes] = []
        """The commands sent last, without the WATCH behind them."""
        self._sent: list[bytes] = []

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of one bucket and returns how many; each key comes once.

        It stops when another attempt has finished the bucket.

        Raises:
            Fenced: the bucket is sealed or removed; the chunk under way was not written.
            InfrastructureError: the server cannot be reached or refuses; chunks up to some point are written.
            ConfigurationError: the user lacks a right; as above.
        """
        keys, count = BucketKeys(generation, bucket), 0
        packer, where = RowPacker(keys, columns), _where(generation, bucket)
        with self._watching(keys.checkpoint):
            for chunk in chunks(rows, lambda row: sum(map(len, row[1])), CHUNK_BYTES, CHUNK_ROWS):
                commands = [MULTI, *_packed_chunk(chunk, packer, SortedSets(keys, indexes)), EXEC]
                if self._confirm(keys.checkpoint, where) is not None:
                    return count
                self._send(keys.checkpoint, commands)
                count += len(chunk)
            self._confirm(keys.checkpoint, where)
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Stores the result of a complete bucket in its checkpoint; returns the result that is stored there.

        That is the result of another attempt if it finished first.

        Raises:
            Fenced: the bucket is sealed or removed.
        """
        keys, where = BucketKeys(generation, result.bucket), _where(generation, result.bucket)
        with self._watching(keys.checkpoint):
            if (stored := self._confirm(keys.checkpoint, where)) is None:
                self._send(
                    keys.checkpoint,
                    [MULTI, packed(b"HSET", keys.checkpoint, FINISHED, result.to_json().encode()), EXEC],
                )
                stored = self._confirm(keys.checkpoint, where)
        return result if stored is None else BucketResult.from_json(stored)

    def close(self) -> None:
        """Closes the connection; the next write opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def may_write(self, phase: bytes | None) -> bool:
        """Whether a bucket in this phase accepts bulk rows."""
        return phase == Phase.BULK.value.encode()

    @contextmanager
    def _watching(self, checkpoint: bytes) -> Iterator[None]:
        """Watches the checkpoint of a bucket during a block; a failure closes the connection."""
        completed = False
        try:
            self._select_server(checkpoint)
            self._send(checkpoint, [UNWATCH])
            yield
            completed = True
        except InfrastructureError as error:
            self._topology.handle_error(error.__cause__ or error)
            raise
        finally:
            if not completed:
                self.close()

    def _select_server(self, checkpoint: bytes) -> None:
        """Disconnects when the next bucket is on another server."""
        with translated(self._settings):
            server = self._topology.server(checkpoint).url
        if server != self._server:
            self.close()
            self._server = server

    def _send(self, checkpoint: bytes, commands: list[bytes]) -> None:
        """Sends commands, followed by the WATCH for the next ones."""
        self._pending = commands
        with translated(self._settings):
            if self._connection is None:
                self._connection = open_connection(self._topology, checkpoint, self._connect)
            self._sent = [*commands, packed(b"WATCH", checkpoint), packed(b"HMGET", checkpoint, b"phase", FINISHED)]
            self._connection.send(self._sent)

    def _confirm(self, checkpoint: bytes, where: str) -> str | None:
        """Waits for the replies to the chunk under way; sends it again if it hit a moving slot.

        A chunk that hit a moving slot was not written.

        Returns:
            The result stored in the checkpoint of a finished bucket; the chunk under way may not have been written.
        """
        deadline, chunk, again = time.monotonic() + self._settings.timeout, self._pending, False
        while True:
            try:
                if again:
                    self._send(checkpoint, [UNWATCH])
                    if (stored := self._check(where)) is not None:
                        return stored
                    self._send(checkpoint, chunk)
                return self._check(where)
            except SlotMoved as error:
                self.close()
                self._topology.handle_error(error)
                if time.monotonic() > deadline:
                    raise unreachable(self._settings, error) from error
                again = True
                time.sleep(PAUSE)

    def _check(self, where: str) -> str | None:
        """Waits for the replies [… EXEC or UNWATCH, WATCH, [phase, result]], checks them and returns the result."""
        with translated(self._settings):
            replies = self._connection.receive() if self._connection is not None else []
        refuse_errors(self._settings, replies, self._sent)
        landed, _, (phase, stored) = replies[-3:]
        if self.may_write(phase):
            if stored is not None:
                return str(stored, "utf-8")
            if executed(self._settings, landed, self._pending):
                return None
        now = "missing" if phase is None else "being changed" if self.may_write(phase) else phase.decode()
        raise Fenced(f"{where} is {now}, not bulk: this rebuild was finished or abandoned without this task; end it")


def _where(generation: Generation, bucket: int) -> str:
    return f"bucket {bucket} of {generation.view} {generation.id}"


def _packed_chunk(chunk: Iterable[BulkRow], packer: RowPacker, sets: SortedSets) -> Iterator[bytes]:
    for key, fields, version, entries in chunk:
        yield packer.put(key, fields, version)
        sets.list(key, True)
        if entries:
            sets.move(key, None, entries)
    yield from sets.commands()
