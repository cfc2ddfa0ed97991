"""Writes the changed groups of a Spark stream: rows and checkpoints in one flush, fenced by a token per batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from leftfold.engine.archive.gaps import unreachable
from leftfold.engine.rebuild.refresh import ComputedRow
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.model.computed_views import StreamedView, TableView
from leftfold.model.position import Position
from leftfold.model.rows import CHECKSUM_MODULUS
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, RowChange
from leftfold.ports.protocols import ViewStore

__all__ = ["QueryWriter", "batch_of", "no_beginning", "token"]


def batch_of(checkpoints: Mapping[int, Checkpoint]) -> int | None:
    """The batch of a stream that all checkpoints have; None when they differ, or no stream wrote them."""
    found = {checkpoint.token.rpartition(".")[1:] for checkpoint in checkpoints.values()}
    dot, number = found.pop() if len(found) == 1 else ("", "")
    return int(number) if dot and number.removeprefix("-").isdecimal() else None


def no_beginning(topics: Iterable[str], starts: Position) -> str:
    """Why a Spark stream cannot start with the first event of these topics; '' when it can.

    Args:
        starts: the first offset that each partition still holds.
    """
    missing = unreachable(starts.only(topics), Position())
    if not missing:
        return ""
    first = missing[0]
    return (
        f"{first.topic}[{first.partition}] begins at offset {first.end}, and a stream, which reads no archive, would "
        f"have to begin at 0"
    )


def token(run: str, batch: int) -> str:
    """The token of every checkpoint after a batch of one run of a stream."""
    return f"{run}.{batch}"


_NOTHING: Mapping[str, int] = {}


class _Before(NamedTuple):
    row: Any
    digest: int
    indexed: tuple[str, ...] | None


class QueryWriter:
    """Writes rows into one generation; `checkpoints` are those that the store confirmed last.

    Args:
        groups: the fields of a row that name its group; two groups with one key are an error.
        run: names this run of the stream. A writer that finds another run's token in place of its own is refused.

    Raises:
        ViewNotBuilt: a checkpoint is missing.
    """

    def __init__(
        self,
        view: TableView[Any, Any] | StreamedView[Any, Any],
        generation: Generation,
        store: ViewStore,
        groups: Sequence[str],
        run: str,
    ) -> None:
        self._view, self.generation, self._store, self._groups, self._run = view, generation, store, groups, run
        self.checkpoints: Mapping[int, Checkpoint] = store.checkpoints(generation)
        if len(self.checkpoints) < generation.buckets:
            raise ViewNotBuilt(f"generation {generation.id} of view {view.name} lost checkpoints; it is computed again")

    @property
    def batch(self) -> int | None:
        """The batch that all checkpoints have; None when they differ, or no stream wrote them."""
        return batch_of(self.checkpoints)

    def claim(self) -> bool:
        """Puts this run's token into every checkpoint, which fences the run before; False if that one moved."""
        batch = self.batch
        return batch is not None and self._flush(batch, {}, Position())

    def write(self, batch: int, rows: Iterable[ComputedRow], reached: Position) -> bool:
        """Writes the rows of a batch; every checkpoint moves to `reached`, changed or not.

        A batch that the checkpoints already have is not written again. False: another run was here, or the store lost
        writes or went back in time; nothing is written then.

        Raises:
            ContractError: two groups have one key.
        """
        if self.batch is not None and batch <= self.batch:
            return True
        changed: dict[str, ComputedRow] = {}
        for row in rows:
            if row.key in changed:
                raise self._doubled(row.key)
            changed[row.key] = row
        return self._flush(batch, changed, reached)

    def exchange(
        self, batch: int, rows: Iterable[ComputedRow], deleted: Iterable[tuple[int, str]], reached: Position
    ) -> bool:
        """Like `write`, but also deletes rows in the same flush.

        Args:
            rows: at most one of each key.
            deleted: buckets and keys of rows to delete.
        """
        changed = {row.key: row for row in rows}
        return self._flush(batch, changed, reached, {key: bucket for bucket, key in deleted if key not in changed})

    def _flush(
        self, batch: int, changed: Mapping[str, ComputedRow], reached: Position, deleted: Mapping[str, int] = _NOTHING
    ) -> bool:
        before = self._before(changed)
        removed = self._removed(deleted)
        by_bucket: dict[int, list[ComputedRow]] = {bucket: [] for bucket in self.checkpoints}
        for row in changed.values():
            by_bucket[row.bucket].append(row)
        flushes = [self._of_bucket(bucket, batch, rows, before, reached) for bucket, rows in by_bucket.items()]
        flushes = [_without(flush, removed.get(flush.bucket, {})) for flush in flushes]
        if not self._store.flush(flushes):
            return False
        self.checkpoints = {flush.bucket: flush.checkpoint for flush in flushes}
        return True

    def _before(self, changed: Mapping[str, ComputedRow]) -> dict[str, _Before]:
        if not changed:
            return {}
        places = [(row.bucket, row.key) for row in changed.values()]
        codec, found = self._view.rows, {}
        for (_, key), fields in zip(places, self._store.read(self.generation, places).rows, strict=True):
            if fields is None:
                found[key] = _Before(None, 0, None)
                continue
            row, digest = codec.decode(fields), codec.digest(key, tuple(fields[c] for c in codec.columns))
            found[key] = _Before(row, digest, codec.index_entries(row))
            self._check_group(key, row, changed[key])
        return found

    def _removed(self, deleted: Mapping[str, int]) -> dict[int, dict[str, _Before]]:
        """The stored rows of the keys to delete, by bucket."""
        places, codec = [(bucket, key) for key, bucket in deleted.items()], self._view.rows
        found: dict[int, dict[str, _Before]] = {}
        stored = self._store.read(self.generation, places).rows if places else ()
        for (bucket, key), fields in zip(places, stored, strict=True):
            if fields is not None:
                digest = codec.digest(key, tuple(fields[c] for c in codec.columns))
                found.setdefault(bucket, {})[key] = _Before(None, digest, codec.index_entries(codec.decode(fields)))
        return found

    def _check_group(self, key: str, old: Any, new: ComputedRow) -> None:
        codec = self._view.rows
        row = codec.decode(dict(zip(codec.columns, new.fields, strict=True)))
        if any(getattr(old, name) != getattr(row, name) for name in self._groups):
            raise self._doubled(key)

    def _doubled(self, key: str) -> ContractError:
        return ContractError(
            f"view {self._view.name}: the query gives several rows for the key {key}; "
            f"group by what the key is made of, or make the key of more columns"
        )

    def _of_bucket(
        self, bucket: int, batch: int, rows: Sequence[ComputedRow], before: Mapping[str, _Before], reached: Position
    ) -> BucketFlush:
        checkpoint, codec = self.checkpoints[bucket], self._view.rows
        checksum, count, changes = checkpoint.checksum, checkpoint.rows, []
        for row in rows:
            old = before[row.key]
            checksum += codec.digest(row.key, row.fields) - old.digest
            count += old.row is None
            changes.append(RowChange(row.key, row.fields, None, old.indexed, row.entries))
        moved = Checkpoint(
            position=checkpoint.position | reached.only(self.generation.topics),
            checksum=checksum % CHECKSUM_MODULUS,
            token=token(self._run, batch),
            phase=checkpoint.phase,
            rows=count,
            time=checkpoint.time,
        )
        return BucketFlush(
            self.generation, bucket, checkpoint.token, moved, codec.columns, codec.indexes, tuple(changes)
        )


def _without(flush: BucketFlush, removed: Mapping[str, _Before]) -> BucketFlush:
    """The flush, which deletes some rows as well."""
    if not removed:
        return flush
    before = flush.checkpoint
    checksum = (before.checksum - sum(row.digest for row in removed.values())) % CHECKSUM_MODULUS
    deletions = tuple(RowChange(key, None, None, row.indexed, None) for key, row in removed.items())
    return replace(
        flush,
        checkpoint=replace(before, checksum=checksum, rows=before.rows - len(removed)),
        changes=(*flush.changes, *deletions),
    )
