"""The refresh of a computed view: builds a new generation up to given end offsets, then swaps it in."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild, StartedRebuild
from leftfold.engine.rebuild.result import Agreement, Comparison, RebuildResult
from leftfold.engine.rebuild.swap import Swap
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import change, current_time, log_mismatch, why_unusable
from leftfold.engine.views.leases import check_attempt
from leftfold.errors import ContractError, Fenced
from leftfold.model.computed_views import StreamedView, TableView
from leftfold.model.keys import NoRowKey, partition_of
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS, Fields
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, BulkRow
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, covered
from leftfold.safety import shown

__all__ = ["ComputedRow", "Refresh", "computed", "computed_all", "duplicate_key", "write_computed"]


class ComputedRow(NamedTuple):
    """An encoded row with its bucket; when sorted, rows of one key are adjacent."""

    bucket: int
    key: str
    fields: Fields
    entries: tuple[str, ...]


def computed(view: TableView[Any, Any] | StreamedView[Any, Any], row: Any, buckets: int) -> ComputedRow:
    """A row as it is stored in a generation of so many buckets.

    Raises:
        NoRowKey: the view's `key` gives an empty text, or one that cannot be stored.
        ContractError: `key` fails on the row, or gives a value of another type.
    """
    try:
        key = view.row_key(row)
        return ComputedRow(
            partition_of(key.encode(), buckets), key, view.rows.encode(row), view.rows.index_entries(row)
        )
    except Exception as error:
        kind = NoRowKey if isinstance(error, NoRowKey) else ContractError
        raise kind(f"view {view.name}: the row {shown(row)} cannot be stored: {shown(error, str)}") from error


def computed_all(
    view: TableView[Any, Any], rows: Iterable[Any], buckets: int, unnamed: Callable[[Any], None]
) -> list[ComputedRow]:
    """Rows as they are stored; those without a valid key are left out and given to `unnamed`."""
    found = []
    for row in rows:
        try:
            found.append(computed(view, row, buckets))
        except NoRowKey:
            unnamed(row)
    return found


def write_computed(job: BulkJob, rows: Iterable[ComputedRow]) -> Iterator[BucketResult]:
    """Writes the sorted rows of some whole buckets.

    Raises:
        ContractError: two rows have one key.
        Fenced: the generation was finished or abandoned meanwhile.
    """
    codec = job.view.rows
    with closing(job.open_sink()) as sink:
        for bucket, group in groupby(rows, attrgetter("bucket")):
            tally = _Tally(job.view)
            sink.write(job.generation, bucket, codec.columns, codec.indexes, tally.counted(group))
            yield BucketResult(bucket, tally.checksum % CHECKSUM_MODULUS, tally.count)


def duplicate_key(view: View[Any, Any], key: str) -> ContractError:
    """The error for a query that gives several rows for one key."""
    return ContractError(
        f"view {view.name}: the query gives several rows for the key {key}; "
        f"group by what the key is made of, or make the key of more columns"
    )


class _Tally:
    """Counts the rows of a bucket and adds up their digests while they are written."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.checksum = self.count = 0

    def counted(self, rows: Iterable[ComputedRow]) -> Iterator[BulkRow]:
        last = None
        for row in rows:
            if row.key == last:
                raise duplicate_key(self._view, row.key)
            last = row.key
            self.count += 1
            self.checksum += self._view.rows.digest(row.key, row.fields)
            yield BulkRow(row.key, row.fields, None, row.entries)


_CLAIMS = 5
"""How often a live generation is claimed while its stream writes between the read of a checkpoint and the claim."""


class Refresh(Rebuild):
    """A refresh: computes a view again and swaps it in; no projector follows the new generation.

    It stays at its end offsets until the next refresh. Readers see the old rows or the new ones, never both. A previous
    generation at the very same end offsets must have the same rows, unless the view joins reference files, which may
    have changed.
    """

    def stands_at(self, plan: RebuildPlan) -> bool:
        """Whether the live generation is complete and already at the plan's end offsets."""
        live = self._store.registry(self.view.name).live_of(self.view.hash)
        if live is None or why_unusable(self._store, live) or dict(live.topics) != plan.topics or self.foreign():
            return False
        return covered(live, self._store.checkpoints(live)).covers(plan.ends.only(plan.topics))

    def foreign(self) -> str:
        """Why the live generation does not belong to the current topics, with the command to type; '' when it does."""
        live = self._store.registry(self.view.name).live_of(self.view.hash)
        return log_mismatch(live, self._ids()) if live is not None else ""

    def _pause_stream(self) -> bool:
        """Takes the live generation from the stream that writes it, which stands by while this one holds its lease.

        The stream may have been ahead of any plan made before. If this refresh fails, the stream resumes at its batch.
        In a Redis Cluster a claim and a batch at the same moment may each get some buckets; both runs are fenced then.
        """
        from leftfold.engine.streaming.computed_rows import QueryWriter, batch_of  # which imports this module

        view: Any = self.view
        tried = False
        for _ in range(_CLAIMS if self.options.pause_stream and not self.options.pin else 0):
            live = self._store.registry(view.name).live_of(view.hash)
            if live is None or why_unusable(self._store, live) or batch_of(self._store.checkpoints(live)) is None:
                break
            tried = True
            if QueryWriter(view, live, self._store, (), secrets.token_hex(8)).claim():
                break
        return tried

    def _go_live(self, swap: Swap, begun: StartedRebuild) -> RebuildResult:
        sealed, watch = begun.generation.in_phase(Phase.SEALED), begun.watch
        watch.begin("swap")
        checkpoints = self._store.checkpoints(sealed)
        old = self._store.registry(self.view.name).live_of(self.view.hash)
        agreement, sums, why = self._compared(old, sealed, checkpoints)
        swapped = agreement is not Agreement.DIFFERENT or self.options.swap_anyway
        if swapped:
            self._point(sealed, old)
        else:
            remove(self._store, sealed)
        kept = self._tidied(old) if swapped else ""
        watch.end()
        return RebuildResult.of(
            sealed,
            checkpoints,
            predecessor=old.id if old is not None else "",
            events=begun.events,
            old_checksum=sums,
            agreement=agreement,
            why=why,
            swapped=swapped,
            seconds=dict(watch.seconds),
            kept=kept,
            is_folded=False,
        )

    def _compared(
        self, old: Generation | None, sealed: Generation, new: dict[int, Checkpoint]
    ) -> tuple[Agreement, int, str]:
        if old is None:
            return Agreement.ALONE, 0, ""
        if why := why_unusable(self._store, old):
            return Agreement.UNKNOWN, 0, why
        if log_mismatch(old, sealed.ids):
            return Agreement.UNKNOWN, 0, f"{old.id} was computed from other topics"
        before, comparison = self._store.checkpoints(old), Comparison(self.view, old, sealed, self._store)
        one, other = (Position.union(checkpoint.position for checkpoint in found.values()) for found in (before, new))
        if not other.covers(one):
            if cut := self._cut(old):
                return Agreement.UNKNOWN, 0, f"{old.id} is ahead of the log: {cut}"
            raise Fenced(f"view {self.view.name}: generation {old.id} at {one} is ahead of {other}; another was faster")
        if not comparison.look(before, new):
            return Agreement.UNKNOWN, 0, f"{old.id} holds fewer events"
        agreement, why = comparison.agreement, ""
        if agreement is Agreement.DIFFERENT:
            if isinstance(self.view, TableView) and self.view.references:
                why = "its rows differ at the same events; so may its reference files"
            elif self.view.approximate:
                why = "the view is approximate"
        return Agreement.UNKNOWN if why else agreement, comparison.sums[0], why

    def _point(self, sealed: Generation, old: Generation | None) -> None:
        def point(registry: Registry) -> Registry:
            check_attempt(registry, sealed)
            live = registry.live_of(sealed.hash)
            if (live and live.id) != (old and old.id):
                raise Fenced(
                    f"view {self.view.name}: another generation went live meanwhile; are two refreshes running?"
                )
            return registry.pointed(sealed, current_time())

        change(self._store, self.view.name, point)

    def _tidied(self, old: Generation | None) -> str:
        """Removes the previous generation unless it is retained; returns its id if it stays, for reads under way."""
        if old is None or old.phase is Phase.BULK:
            return ""
        if self.options.keep > 0:
            return old.id
        remove(self._store, old)
        return ""
