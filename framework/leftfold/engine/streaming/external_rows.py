"""Rows of a view that the user's own stream processor computes, written into a generation."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Generic

from typing_extensions import TypeVar

from leftfold.engine.rebuild.refresh import ComputedRow, computed
from leftfold.engine.streaming.computed_rows import QueryWriter
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import BUCKETS, age_key, change, current_time, followed, open_generation
from leftfold.engine.views.leases import exclusive_lease
from leftfold.errors import Fenced, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.computed_views import StreamedView
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.ports.flush import Generation, Phase, Registry, covered
from leftfold.ports.protocols import ViewStore

__all__ = ["ExternalRows"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


class ExternalRows(Generic[Row, K]):
    """Collects rows, the last of each key, and writes them with the position up to which they include all events.

    One process at a time writes a view: its token is in every checkpoint, so that none writes beside one that took
    over. On request the rows go into a new generation, which readers do not see before `show`, beside the one that
    another process writes.

    Args:
        topics: the partition counts of the topics that the stream reads.
    """

    def __init__(
        self, view: StreamedView[Row, K], store: ViewStore, topics: Mapping[str, int], *, is_rebuild: bool = False
    ) -> None:
        self.view, self._store, self.topics, self.is_rebuild = view, store, dict(topics), is_rebuild
        self._rows: dict[str, Row] = {}
        self._gone: dict[str, int] = {}
        self._writer: QueryWriter | None = None
        self._batch = 0
        self.is_live = False

    def alone(self) -> AbstractContextManager[object]:
        """An exclusive lease on the view's rows; that of a dead process expires after 15 s.

        Raises:
            InfrastructureError: another process writes or rebuilds the view.
        """
        name = self.view.name
        if self.is_rebuild:
            return exclusive_lease(self._store, names.rebuilds(name), f"view {name} is being rebuilt")
        return exclusive_lease(self._store, names.streams(name, self.view.hash), f"view {name} is kept")

    def open(self) -> Generation:
        """Takes over the newest generation of this code, or creates one that starts with the first event.

        Readers see the live generation until `show`: each of its buckets still matches its checkpoint. A generation
        older than the live one is never taken over, because `check_current` would refuse it.

        Raises:
            Fenced: another process moved it just now.
        """
        registry = self._store.registry(self.view.name)
        there, live = followed(registry, self.view).values(), registry.live_of(self.view.hash)
        # A kept one stays until its time is over, for reads under way.
        found = (g for g in there if g.phase is not Phase.KEPT and (g.phase is Phase.HELD) is self.is_rebuild)
        for generation in sorted(found, key=age_key, reverse=True):
            if self.is_rebuild:
                remove(self._store, generation)
                continue
            is_replaced = live is not None and age_key(live) > age_key(generation)
            is_ours = not is_replaced and dict(generation.topics) == self.topics
            if is_ours and (writer := self._taken(generation)) is not None:
                return self._begin(writer)
            if generation.phase is not Phase.LIVE:
                remove(self._store, generation)
        phase = Phase.HELD if self.is_rebuild else Phase.SEALED
        generation = open_generation(self._store, self.view, self.topics, phase, BUCKETS)
        writer = QueryWriter(self.view, generation, self._store, (), secrets.token_hex(8))
        if not writer.write(0, (), Position()):
            raise Fenced(f"view {self.view.name}: generation {generation.id} is written by another process")
        return self._begin(writer)

    @property
    def generation(self) -> Generation:
        """The generation of these rows."""
        return self._open_writer().generation

    def put(self, row: Row) -> None:
        """Sets the row of its key."""
        key = self.view.row_key(row)
        self._rows[key] = row
        self._gone.pop(key, None)

    def delete(self, key: K) -> None:
        """Deletes the row of a key."""
        encoded = self.view.keys.encode(key)
        self._rows.pop(encoded, None)
        self._gone[encoded] = partition_of(encoded.encode(), BUCKETS)

    def take(self) -> tuple[list[ComputedRow], list[tuple[int, str]]]:
        """Takes the collected changes: rows to write, and buckets and keys to delete.

        Raises:
            ContractError: a row cannot be stored.
        """
        rows = [computed(self.view, row, BUCKETS) for row in self._rows.values()]
        deleted = [(bucket, key) for key, bucket in self._gone.items()]
        self._rows, self._gone = {}, {}
        return rows, deleted

    def write(self, taken: tuple[list[ComputedRow], list[tuple[int, str]]], reached: Position) -> None:
        """Writes the changes from `take`; the rows then include all events before `reached`.

        Raises:
            Fenced: another process has taken over, or the store went back in time.
        """
        writer = self._open_writer()
        if not writer.exchange(self._batch + 1, *taken, reached):
            raise Fenced(
                f"view {self.view.name}: its checkpoints are not what this process wrote last; another one keeps it, "
                f"or Redis went back in time"
            )
        self._batch += 1

    def show(self) -> None:
        """Makes the generation of these rows live.

        Raises:
            Fenced: another process has removed it.
        """
        generation = self.generation

        def pointed(registry: Registry) -> Registry:
            if generation.id not in registry.generations:
                raise Fenced(
                    f"view {self.view.name}: another process has removed generation {generation.id}; rebuild it again"
                )
            return registry.pointed(generation, current_time())

        change(self._store, self.view.name, pointed)
        self.is_live = True

    def check_current(self) -> None:
        """Checks that readers see no newer generation than this one.

        Raises:
            Fenced: they do: a rebuild has made it.
        """
        mine, live = self.generation, self._store.registry(self.view.name).live_of(self.view.hash)
        if live is not None and age_key(live) > age_key(mine):
            raise Fenced(
                f"view {self.view.name} was rebuilt as generation {live.id}; its stream continues with that generation"
            )

    def seen(self) -> Position:
        """The position up to which the live rows include all events; an empty one when none are live."""
        live = self._store.registry(self.view.name).live_of(self.view.hash)
        return covered(live, self._store.checkpoints(live)) if live is not None else Position()

    def position(self) -> Position:
        """The position up to which these rows include all events."""
        writer = self._open_writer()
        return covered(writer.generation, writer.checkpoints)

    def discard(self) -> None:
        """Removes the generation, whose content is uncertain."""
        remove(self._store, self.generation)

    def _taken(self, generation: Generation) -> QueryWriter | None:
        try:
            writer = QueryWriter(self.view, generation, self._store, (), secrets.token_hex(8))
        except ViewNotBuilt:
            return None
        if writer.batch is None:
            return None
        if not writer.claim():
            raise Fenced(f"view {self.view.name}: generation {generation.id} is written by another process")
        return writer

    def _begin(self, writer: QueryWriter) -> Generation:
        self._writer, self._batch = writer, writer.batch or 0
        registry = self._store.registry(self.view.name)
        self.is_live = registry.live.get(writer.generation.pointer) == writer.generation.id
        return writer.generation

    def _open_writer(self) -> QueryWriter:
        if self._writer is None:
            raise ViewNotBuilt(f"view {self.view.name}: call open() first")
        return self._writer
