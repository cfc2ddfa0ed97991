"""Has a stream of the App's own go through the log once more, into new generations of its views, and swaps them in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from leftfold.client.results import Description, describe
from leftfold.engine.views.cleanup import remove, sweep
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.model.app import App, Streaming
from leftfold.model.view import View
from leftfold.ports.flush import Generation
from leftfold.ports.protocols import ViewStore
from leftfold.redis import RedisViewStore
from leftfold.runtime.connect import kafka_settings, redis_settings
from leftfold.runtime.project import Usage

if TYPE_CHECKING:
    from leftfold.engine.streaming.external_rows import ExternalRows

__all__ = ["Rebuilt", "StreamRebuild", "keepers"]

_LOOKS, _LOOK_SECONDS = 4, 0.5


def keepers(app: App, views: Sequence[View[Any, Any]]) -> list[Streaming]:
    """The streams that keep these views.

    Raises:
        Usage: a program of the user's own keeps one.
    """
    found: dict[str, Streaming] = {}
    for view in views:
        stream = app.keeper(view)
        if stream is None:
            raise Usage(
                f"view {view.name} is kept by a program of your own; name its stream, App(streams=[Streaming(...)]), "
                f"so that rebuild can run it, or raise the view's version to have it begin anew"
            )
        found[stream.name] = stream
    return list(found.values())


class Rebuilt(NamedTuple):
    """What came of it for one view: `equal` is None where the rows before went on meanwhile, or there were none."""

    view: str
    generation: str
    predecessor: str
    rows: int
    checksum: str
    equal: bool | None
    swapped: bool

    def __str__(self) -> str:
        said = {True: "equal", False: "different", None: "not compared: they went on meanwhile"}[self.equal]
        lines = [
            f"{self.view} {self.generation}: {self.rows:,} rows, checksum {self.checksum}",
            f"  predecessor {self.predecessor}: {said}" if self.predecessor else "  predecessor none",
        ]
        if not self.swapped:
            lines.append(f"  not swapped: go live with the new rows: leftfold rebuild {self.view} --anyway")
        elif self.predecessor:
            lines.append(f"  the replaced rows ({self.predecessor}) are kept until a later rebuild")
        return "\n".join(lines)


class StreamRebuild:
    """Rebuilds the views of one stream, beside whoever keeps them."""

    def __init__(self, app: App, stream: Streaming, kafka: str | None, redis: str | None) -> None:
        self._app, self._stream = app, stream
        self._kafka, self._redis = kafka_settings(kafka), redis_settings(redis)

    def run(self, stop: threading.Event, *, keep: float, anyway: bool) -> list[Rebuilt]:
        """Works until all is swapped in.

        Args:
            keep: seconds for which what was replaced before is kept. anyway: goes live even if the rows differ.

        Raises:
            InfrastructureError: another process rebuilds one of the views, or it was told to stop before its time.
        """
        from leftfold.faust.streams import streams_of

        with closing(RedisViewStore(self._redis)) as store:
            with ClusterAdmin(self._kafka) as cluster:
                dialect = self._kafka.aiokafka()
                streams = streams_of(self._app, self._stream, dialect, store, cluster.partitions, anew=True)
            found: tuple[ExternalRows[Any, Any], ...] = streams.rows
            with closing(streams):
                for view in self._stream.views:
                    sweep(store, view, keep)
                try:
                    if not streams.run(stop, once=True):
                        raise InfrastructureError(f"stream {self._stream.name} was stopped before it had caught up")
                    return [self._swapped(store, rows, stop, anyway=anyway) for rows in found]
                except BaseException:
                    for rows in found:
                        _abandon(store, rows)
                    raise

    def _swapped(
        self, store: ViewStore, rows: ExternalRows[Any, Any], stop: threading.Event, *, anyway: bool
    ) -> Rebuilt:
        view, generation = rows.view, rows.generation
        old = store.registry(view.name).live_of(view.hash)
        told = describe(view, generation, store)
        equal = _are_equal(told, view, old, store)
        for _ in range(_LOOKS):
            if equal is not False or stop.wait(_LOOK_SECONDS):
                break
            # A row may be newer than its checkpoint, until the next flush.
            equal = _are_equal(told, view, old, store)
        swapped = equal is not False or anyway
        if swapped:
            rows.show()
        else:
            remove(store, generation)
        return Rebuilt(view.name, generation.id, old.id if old else "", told.rows, told.checksum, equal, swapped)


def _abandon(store: ViewStore, rows: ExternalRows[Any, Any]) -> None:
    live = store.registry(rows.view.name).live_of(rows.view.hash)
    if live is None or live.id != rows.generation.id:
        remove(store, rows.generation)


def _are_equal(told: Description, view: View[Any, Any], old: Generation | None, store: ViewStore) -> bool | None:
    if old is None:
        return None
    before = describe(view, old, store)
    if before.position != told.position:
        return None
    return (before.rows, before.checksum) == (told.rows, told.checksum)
