"""What maintenance commands need: the archive, the view store, and the last records of a topic."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leftfold.engine.processing.process_wire import Router, Unusable
from leftfold.errors import ContractError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import DeadLetters, record_at, write_record
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import events, partition_of
from leftfold.model.position import Position, RecordAddress
from leftfold.model.process import Process
from leftfold.ports.bulk import BulkStore, OpenBulkLog, OpenBulkSink
from leftfold.ports.codec import header
from leftfold.ports.outgoing import Letter, dead_letter
from leftfold.ports.protocols import LogReader, RawRecord
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.runtime.connect import archive_dir, kafka_settings, open_bulk, open_reader, redis_settings
from leftfold.runtime.project import Usage, find_project, unknown

if TYPE_CHECKING:
    from leftfold.model.app import App
    from leftfold.model.view import View

__all__ = [
    "Servers",
    "Workbench",
    "archive_needed",
    "archive_of",
    "check_addresses",
    "check_broker",
    "folded_view_of",
    "last_records",
    "pass_over",
    "place_in",
    "skipped_letters",
    "stopping",
    "store_of",
    "topic_in",
    "topic_of",
    "unroutable",
    "view_of",
    "workbench",
]


def archive_of(given: str | None) -> str:
    """The archive, '' when nobody names one; a path in pyproject.toml is relative to that file."""
    return archive_dir(given, default=find_project().archive)


def archive_needed(given: str | None, option: str) -> str:
    """The archive, which must be named.

    Raises:
        Usage: nobody says where it is.
    """
    found = archive_of(given)
    if not found:
        raise Usage(
            f"where is the archive? say {option} DIR, set LEFTFOLD_ARCHIVE_DIR, or write archive = 'DIR' under "
            f"[tool.leftfold] in pyproject.toml"
        )
    return found


def topic_of(category: str, kafka: str | None) -> tuple[KafkaSettings, str]:
    """The events topic of a category that the cluster has.

    Raises:
        Usage: it has none such.
    """
    settings = kafka_settings(kafka)
    with ClusterAdmin(settings) as cluster:
        topic, _ = topic_in(cluster, category)
    return settings, topic


def topic_in(cluster: Any, category: str) -> tuple[str, int]:
    """The events topic of a category, and how many partitions it has.

    Raises:
        Usage: the cluster has none such.
        ConfigurationError: the login may not see it.
    """
    topic = events(category)
    # Listing hides what a login may not see; asked by name, the broker says so.
    count: int | None = cluster.partition_counts([topic]).get(topic)
    if count is None:
        known = (name.removesuffix(".events") for name in cluster.topics() if name.endswith(".events"))
        raise unknown("category in the log called", category, known)
    return topic, count


_BATCH, _WAIT, _PATIENCE = 500, 0.1, 5.0


def last_records(cluster: Any, settings: Any, topic: str, most: int) -> Iterator[RawRecord]:
    """What is committed among the last `most` offsets of each partition; nothing where there is no such topic.

    What an open transaction hides is waited for for five seconds only.
    """
    if topic not in cluster.partition_counts([topic]):
        return
    starts, ends = cluster.starts([topic]), cluster.ends([topic])
    begin = {p: max(starts.next_offset(topic, p), end - most) for p, end in ends.offsets[topic].items()}
    with closing(KafkaLogReader(settings)) as reader:
        reader.seek(Position({topic: begin}))
        heard = time.monotonic()
        while not reader.position().covers(ends) and time.monotonic() - heard < _PATIENCE:
            if records := reader.poll(_BATCH, _WAIT):
                heard = time.monotonic()
                yield from records


_PLACE = re.compile(r"(?P<topic>[^\[\]/]+)(?:\[(?P<p>[0-9]+)\]@|/(?P<q>[0-9]+)/)(?P<offset>[0-9]{1,18})")
_ROOM = 1_000_000
"""Brokers take a little more by default."""


class Unroutable(NamedTuple):
    """An event that ends the routers of a process, and why."""

    place: RecordAddress
    record: RawRecord
    why: str


def skipped_letters(settings: Any, process: str) -> frozenset[str]:
    """Where what nobody takes stands, as `topic/partition/offset`: inputs that were dead-lettered are among it."""
    with ClusterAdmin(settings) as cluster:
        letters = last_records(cluster, settings, names.dead(process), sys.maxsize)
        return frozenset(header(letter.headers, "dead_source").decode(errors="replace") for letter in letters)


def place_in(text: str, what: str = "an event; write it as routers tell it: 'orders.events[2]@7'") -> RecordAddress:
    """The place that was typed.

    Raises:
        Usage: it is none.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Usage(f"{text!r} is no place of {what}")
    return RecordAddress(found["topic"], int(found["p"] or found["q"]), int(found["offset"]))


def unroutable(app: str, process: Process[Any, Any, Any], place: RecordAddress, settings: Any) -> Unroutable:
    """The event that stands there.

    Raises:
        Usage: the process does not listen to it, or it can be routed. ContractError: nothing stands there.
    """
    topics = [names.events(category) for category in process.categories]
    if place.topic not in topics:
        raise Usage(f"process {process.name} does not listen to {place.topic}; it does to {', '.join(topics)}")
    record: RawRecord = record_at(settings, *place)
    try:
        Router(app, process, lambda key: 0).route(record)
    except Unusable as error:
        raise Usage(
            f"routers of {process.name} go on behind {place} by themselves: {error}; nothing was changed. Its dead "
            f"letter: leftfold dead list {process.name}"
        ) from error
    except ContractError as error:
        return Unroutable(place, record, str(error))
    raise Usage(f"{place} can be routed to {process.name}, so it is not passed over; nothing was changed")


def stopping(decider: str, places: Sequence[RecordAddress], settings: Any) -> list[Letter]:
    """The letters of workers that stand still at these events of their category, which they cannot fold.

    Raises:
        Usage: no worker has said so of one of them.
    """
    events, found = names.events(decider), list[Letter]()
    letters = DeadLetters(decider, settings).read()
    waiting = [letter for letter in letters if not letter.handled]
    for place in places:
        here = [letter for letter in waiting if letter.source == f"{place.topic}/{place.partition}/{place.offset}"]
        if not here or place.topic != events:
            raise Usage(
                f"no worker of {decider} stands still at {place}, so it is not passed over; nothing was changed. Where "
                f"they do: leftfold status"
            )
        found += here
    return found


def pass_over(process: str, found: Unroutable, why: str, settings: Any) -> None:
    """Has routers pass over an event, from their next start on."""
    dead = names.dead(process)
    with ClusterAdmin(settings) as cluster:
        partition = partition_of(found.record.key or b"", cluster.partitions(dead))
    letter = dead_letter(found.record, f"{why}; {found.why}", partition, _ROOM)
    write_record(settings, dead, letter)


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
    open_store: Callable[[], BulkStore] = partial(RedisViewStore, of_redis)
    store = open_store()
    try:
        yield Workbench(
            store=store,
            open_log=open_bulk(of_kafka, past),
            open_reader=open_reader(of_kafka, past),
            open_sink=partial(RedisBulkSink, of_redis),
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
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        cluster.brokers()


@contextmanager
def store_of(redis: str | None) -> Iterator[BulkStore]:
    """The store alone, for commands that need no log."""
    store: BulkStore = RedisViewStore(redis_settings(redis))
    try:
        yield store
    finally:
        store.close()


def folded_view_of(app: App, name: str) -> View[Any, Any]:
    """The App's view of a name, which must be one that is folded event by event.

    Raises:
        Usage: it has none such, or Spark computes it as a whole.
    """
    from leftfold.runtime.project import Usage

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
    from leftfold.runtime.project import unknown

    for view in app.views:
        if view.name == name:
            return view
    raise unknown(f"view in app {app.name} called", name, (view.name for view in app.views))
