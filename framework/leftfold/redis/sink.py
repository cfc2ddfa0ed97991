"""Rows in bulk: how the tasks of a rebuild fill the buckets they own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkRow
from leftfold.errors import Fenced
from leftfold.flush import Generation, Phase
from leftfold.redis.failures import executed, refuse_errors, translated
from leftfold.redis.keys import FINISHED, BucketKeys
from leftfold.redis.packing import EXEC, MULTI, UNWATCH, RowPacker, SortedSets, packed
from leftfold.redis.settings import RedisSettings
from leftfold.redis.wire import Dial, Wire, dial
from leftfold.rows import Fields

__all__ = ["BulkSink"]

CHUNK_ROWS = 500
CHUNK_BYTES = 512 * 1024


class BulkSink:
    """Writes rows of buckets whose mark says `bulk`, chunk by chunk; one thread uses it.

    Each chunk is a transaction under a WATCH of the mark. A chunk is packed while the server works on the one before,
    but never sent before the answer behind that one's EXEC said `bulk`: with two in flight, one could land behind a
    seal. A task that is run again writes the same rows again, which changes nothing.
    """

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self._settings, self._dial = settings, dial
        self._wire: Wire | None = None

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of one bucket and returns how many; each key comes once.

        Raises:
            Fenced: the bucket is sealed or gone; the chunk under way was not written.
            InfrastructureError: the server cannot be reached or refuses; chunks up to some point are written.
        """
        keys, count, completed = BucketKeys(generation, bucket), 0, False
        packer, where, watch = RowPacker(keys, columns), _where(generation, bucket), _watch(keys)
        try:
            self._send([UNWATCH, *watch])
            for chunk in _chunks(rows):
                commands = [MULTI, *_packed_chunk(chunk, packer, SortedSets(keys, indexes)), EXEC, *watch]
                self._confirm(where)
                self._send(commands)
                count += len(chunk)
            self._confirm(where)
            completed = True
        finally:
            if not completed:
                self.close()
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Notes in the bucket's mark that all its rows are there.

        Raises:
            Fenced: the bucket is sealed or gone.
        """
        keys, where = BucketKeys(generation, result.bucket), _where(generation, result.bucket)
        self._send([UNWATCH, *_watch(keys)])
        self._confirm(where)
        self._send([MULTI, packed(b"HSET", keys.mark, FINISHED, result.to_json().encode()), EXEC, *_watch(keys)])
        self._confirm(where)
        return result

    def close(self) -> None:
        """Closes the connection; the next write opens another."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def may_write(self, phase: bytes | None) -> bool:
        """Whether a bucket in this phase takes bulk rows."""
        return phase == Phase.BULK.value.encode()

    def _send(self, commands: list[bytes]) -> None:
        with translated(self._settings):
            if self._wire is None:
                self._wire = Wire(self._settings, self._dial)
            self._wire.send(commands)

    def _confirm(self, where: str) -> None:
        """Waits for the answers [… EXEC or UNWATCH, WATCH, phase] and checks them."""
        with translated(self._settings):
            replies = self._wire.receive() if self._wire is not None else []
        refuse_errors(self._settings, replies)
        landed, _, phase = replies[-3:]
        if not executed(landed) or not self.may_write(phase):
            now = "gone" if phase is None else phase.decode()
            raise Fenced(
                f"{where} is {now}, not bulk: this rebuild was finished or abandoned without this task; end it"
            )


def _where(generation: Generation, bucket: int) -> str:
    return f"bucket {bucket} of {generation.view} {generation.id}"


def _watch(keys: BucketKeys) -> list[bytes]:
    return [packed(b"WATCH", keys.mark), packed(b"HGET", keys.mark, b"phase")]


def _packed_chunk(chunk: Iterable[BulkRow], packer: RowPacker, sets: SortedSets) -> Iterator[bytes]:
    for key, fields, version, entries in chunk:
        yield packer.put(key, fields, version)
        sets.list(key, True)
        if entries:
            sets.move(key, None, entries)
    yield from sets.commands()


def _chunks(rows: Iterable[BulkRow]) -> Iterator[list[BulkRow]]:
    chunk: list[BulkRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row[1]))
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
