"""Rebuild of the views that streams keep: a stream reads the log again into new generations, which then go live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from threading import Event
from typing import Any, NamedTuple

from leftfold.client.results import Description, describe
from leftfold.engine.streaming.external_rows import ExternalRows
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

__all__ = ["StreamRebuilt", "rebuild_streams"]

_LOOKS, _LOOK_SECONDS = 4, 0.5


class StreamRebuilt(NamedTuple):
    """The result for one view; `equal` is None where the old rows advanced meanwhile, or there were none."""

    view: str
    generation: str
    predecessor: str
    rows: int
    checksum: str
    equal: bool | None
    swapped: bool

    def __str__(self) -> str:
        verdict = {True: "equal", False: "different", None: "not compared: they went on meanwhile"}[self.equal]
        lines = [
            f"{self.view} {self.generation}: {self.rows:,} rows, checksum {self.checksum}",
            f"  predecessor {self.predecessor}: {verdict}" if self.predecessor else "  predecessor none",
        ]
        if not self.swapped:
            lines.append(f"  not swapped: go live with the new rows: leftfold rebuild {self.view} --anyway")
        elif self.predecessor:
            lines.append(f"  the replaced rows ({self.predecessor}) are kept until a later rebuild")
        return "\n".join(lines)


def rebuild_streams(
    app: App, views: Sequence[View[Any, Any]], kafka: str | None, redis: str | None, *, keep: float, anyway: bool
) -> Iterator[StreamRebuilt]:
    """Has the streams that keep these views read the log again, beside the processes that keep them.

    Args:
        keep: seconds for which a replaced generation is kept. anyway: goes live even if the rows differ.

    Raises:
        Usage: a program of the user's own keeps one of the views.
        InfrastructureError: another process rebuilds one of them, or a stream ended before it had caught up.
    """
    from leftfold.faust.streams import streams_of

    of_kafka, of_redis = kafka_settings(kafka), redis_settings(redis)
    for stream in _keepers(app, views):
        with closing(RedisViewStore(of_redis)) as store:
            with ClusterAdmin(of_kafka) as cluster:
                streams = streams_of(app, stream, of_kafka.aiokafka(), store, cluster.partitions, is_rebuild=True)
            with closing(streams):
                for view in stream.views:
                    sweep(store, view, keep)
                try:
                    if not streams.run(Event(), once=True):
                        raise InfrastructureError(f"stream {stream.name} was stopped before it had caught up")
                    results = [_swapped(store, rows, anyway=anyway) for rows in streams.rows]
                except BaseException:
                    for rows in streams.rows:
                        _abandon(store, rows)
                    raise
        yield from results


def _keepers(app: App, views: Sequence[View[Any, Any]]) -> list[Streaming]:
    found: dict[str, Streaming] = {}
    for view in views:
        stream = app.keeper(view)
        if stream is None:
            raise Usage(
                f"view {view.name} is kept by a program of your own; name its stream, App(streams=[Streaming(...)]), "
                f"so that rebuild can run it, or raise the view's version to have it begin again"
            )
        found[stream.name] = stream
    return list(found.values())


def _swapped(store: ViewStore, rows: ExternalRows[Any, Any], *, anyway: bool) -> StreamRebuilt:
    view, generation = rows.view, rows.generation
    old = store.registry(view.name).live_of(view.hash)
    new = describe(view, generation, store)
    equal = _are_equal(new, view, old, store)
    for _ in range(_LOOKS if equal is False else 0):
        time.sleep(_LOOK_SECONDS)  # a row may be newer than its checkpoint, until the next flush
        equal = _are_equal(new, view, old, store)
        if equal is not False:
            break
    swapped = equal is not False or anyway
    if swapped:
        rows.show()
    else:
        remove(store, generation)
    return StreamRebuilt(view.name, generation.id, old.id if old else "", new.rows, new.checksum, equal, swapped)


def _abandon(store: ViewStore, rows: ExternalRows[Any, Any]) -> None:
    live = store.registry(rows.view.name).live_of(rows.view.hash)
    if live is None or live.id != rows.generation.id:
        remove(store, rows.generation)


def _are_equal(new: Description, view: View[Any, Any], old: Generation | None, store: ViewStore) -> bool | None:
    if old is None:
        return None
    before = describe(view, old, store)
    if before.position != new.position:
        return None
    return (before.rows, before.checksum) == (new.rows, new.checksum)
