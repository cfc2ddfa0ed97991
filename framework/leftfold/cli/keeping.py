"""How views that Spark computes are kept in truth, which takes more than their SQL: what the topics still hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leftfold import names
from leftfold.cli.workbench import store_of
from leftfold.connection import kafka_settings, ring
from leftfold.engine.kept import batch_of, no_beginning
from leftfold.errors import LeftfoldError
from leftfold.flush import covered
from leftfold.position import Position
from leftfold.query import TableView

if TYPE_CHECKING:
    from leftfold.spark.sql.incremental import Refreshed

__all__ = ["kept"]


def kept(view: TableView[Any, Any], allowed: Refreshed, kafka: str | None, redis: str | None) -> Refreshed:
    """How a view is kept whose SQL allows something; where no server answers, as the SQL allows.

    A stream that stands ahead of a trimmed topic's start goes on. Without one the view is computed from archive and
    topic again and again, although its SQL would allow a stream.
    """
    if not allowed.incremental:
        return allowed
    topics = [names.events(category) for category in view.categories]
    try:
        with ring("leftfold.kafka.cluster").Cluster(kafka_settings(kafka)) as cluster:
            starts: Position = cluster.starts(topics)
    except LeftfoldError:
        return allowed
    gone = no_beginning(topics, starts)
    if not gone:
        return allowed
    if _streams(view, starts, redis):
        return replace(
            allowed, why=f"{allowed.why}; its stream is past the trim, and must not lose its checkpoint: {gone}"
        )
    return replace(allowed, incremental=False, why=f"{gone}; its SQL would allow a stream", groups=())


def _streams(view: TableView[Any, Any], starts: Position, redis: str | None) -> bool:
    """Whether a stream wrote what readers see, and is past where the topics begin."""
    try:
        with store_of(redis) as store:
            live = store.registry(view.name).live_of(view.hash)
            marks = store.marks(live) if live is not None else {}
    except LeftfoldError:
        return False
    return live is not None and batch_of(marks) is not None and covered(live, marks).covers(starts)
