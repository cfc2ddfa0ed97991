"""What commands that look after views need: the store, and how to open the log and the store where tasks run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from leftfold.cli.archives import archive_of
from leftfold.connection import kafka_settings, redis_settings, ring
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.bulk_store import BulkStore, OpenBulkSink
from leftfold.ports import LogReader
from leftfold.wholelog import open_bulk, open_reader

if TYPE_CHECKING:
    from leftfold.app import App
    from leftfold.view import View

__all__ = [
    "Servers",
    "Workbench",
    "check_addresses",
    "check_broker",
    "folded_view_of",
    "store_of",
    "view_of",
    "workbench",
]

Servers: TypeAlias = tuple[str | None, str | None, str | None]
"""Kafka, Redis and the archive, as options name them; None = as settings say."""


@dataclass(frozen=True)
class Workbench:
    """The store of this process, and factories that can be shipped to tasks."""

    store: BulkStore
    open_log: OpenBulkLog
    open_reader: Callable[[], LogReader]
    open_sink: OpenBulkSink
    open_store: Callable[[], BulkStore]


@contextmanager
def workbench(kafka: str | None, redis: str | None, archive: str | None = None) -> Iterator[Workbench]:
    """A workbench on the servers and the archive that are meant; its store is closed at the end."""
    of_kafka, of_redis, past = kafka_settings(kafka), redis_settings(redis), archive_of(archive)
    adapter = ring("leftfold.redis")
    open_store: Callable[[], BulkStore] = partial(adapter.RedisViewStore, of_redis)
    store = open_store()
    try:
        yield Workbench(
            store=store,
            open_log=open_bulk(of_kafka, past),
            open_reader=open_reader(of_kafka, past),
            open_sink=partial(adapter.BulkSink, of_redis),
            open_store=open_store,
        )
    finally:
        store.close()


def check_addresses(kafka: str | None, redis: str | None, archive: str | None = None) -> None:
    """Finds out where the servers are: before Spark is started, which takes its time.

    Raises:
        ConfigurationError: nobody says, or what they say is wrong.
    """
    kafka_settings(kafka), redis_settings(redis), archive_of(archive)


def check_broker(kafka: str | None) -> None:
    """Asks any broker for anything: a fold that only reads would wait a minute for the first record, and say nothing.

    Raises:
        InfrastructureError: none answers.
    """
    with ring("leftfold.kafka.cluster").Cluster(kafka_settings(kafka)) as cluster:
        cluster.brokers()


@contextmanager
def store_of(redis: str | None) -> Iterator[BulkStore]:
    """The store alone, for commands that need no log."""
    store: BulkStore = ring("leftfold.redis").RedisViewStore(redis_settings(redis))
    try:
        yield store
    finally:
        store.close()


def folded_view_of(app: App, name: str) -> View[Any, Any]:
    """The App's view of a name, which must be one that is folded event by event.

    Raises:
        Usage: it has none such, or Spark computes it as a whole.
    """
    from leftfold.cli.failures import Usage

    view = view_of(app, name)
    if view.streamed:
        raise Usage(
            f"view {name} is kept by a stream of its own, not folded event by event; only that stream can compute it "
            f"again, and compares the rows: leftfold rebuild {name}"
        )
    if not view.folded:
        raise Usage(
            f"view {name} is computed as a whole by Spark, not event by event; "
            f"compute it again: leftfold rebuild {name}"
        )
    return view


def view_of(app: App, name: str) -> View[Any, Any]:
    """The App's view of a name.

    Raises:
        Usage: it has none such.
    """
    from leftfold.cli.failures import unknown

    for view in app.views:
        if view.name == name:
            return view
    raise unknown(f"view in app {app.name} called", name, (view.name for view in app.views))
