"""Writes the changed groups of a Spark stream: rows and checkpoints in one flush, fenced by a token per batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from leftfold.engine.log_gaps import unreachable
from leftfold.engine.rebuild.refresh import ComputedRow, duplicate_key
from leftfold.engine.views.folded_rows import FoldedBucket, FoldedRow, RowAddress, stored_row
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.model.computed_views import StreamedView, TableView
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
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
                raise duplicate_key(self._view, row.key)
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
        buckets = {number: FoldedBucket.of(checkpoint) for number, checkpoint in self.checkpoints.items()}
        changes: dict[int, list[RowChange]] = {number: [] for number in buckets}
        for row in self._stored([(new.bucket, key) for key, new in changed.items()], buckets):
            new = changed[row.key]
            if row.there:
                self._check_group(row, new)
            row.row = new
            changes[new.bucket].append(row.change(self._view, (new.fields, new.entries)))
        for row in self._stored([(number, key) for key, number in deleted.items()], buckets):
            if row.there:
                row.row = None
                changes[deleted[row.key]].append(row.change(self._view))
        flushes = [self._of_bucket(number, batch, buckets[number], found, reached) for number, found in changes.items()]
        if not self._store.flush(flushes):
            return False
        self.checkpoints = {flush.bucket: flush.checkpoint for flush in flushes}
        return True

    def _stored(self, places: Sequence[RowAddress], buckets: Mapping[int, FoldedBucket]) -> Iterator[FoldedRow]:
        """The rows at these places as they are stored.

        Raises:
            ContractError: one of them cannot be read.
        """
        found = self._store.read(self.generation, places).rows if places else ()
        for (number, key), fields in zip(places, found, strict=True):
            row = stored_row(self._view, buckets[number], key, fields)
            if isinstance(row.row, ContractError):
                raise row.row
            yield row

    def _check_group(self, old: FoldedRow, new: ComputedRow) -> None:
        codec = self._view.rows
        row = codec.decode(dict(zip(codec.columns, new.fields, strict=True)))
        if any(getattr(old.row, name) != getattr(row, name) for name in self._groups):
            raise duplicate_key(self._view, old.key)

    def _of_bucket(
        self, number: int, batch: int, bucket: FoldedBucket, changes: Sequence[RowChange], reached: Position
    ) -> BucketFlush:
        checkpoint, codec = self.checkpoints[number], self._view.rows
        moved = Checkpoint(
            position=checkpoint.position | reached.only(self.generation.topics),
            checksum=bucket.checksum % CHECKSUM_MODULUS,
            token=token(self._run, batch),
            phase=checkpoint.phase,
            rows=bucket.rows,
            time=checkpoint.time,
        )
        moves, fields = not checkpoint.position.covers(moved.position), (codec.columns, codec.indexes)
        return BucketFlush(self.generation, number, checkpoint.token, moved, *fields, tuple(changes), moves)
