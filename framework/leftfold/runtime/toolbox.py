"""Shared code of maintenance commands: the archive, the view store, dead letters and last records of a topic."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
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
from leftfold.ports.bulk import BulkStore, OpenBulkLog, OpenBulkSink, read_to
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
    """The archive's directory, '' when none is configured; a path in pyproject.toml is relative to that file."""
    return archive_dir(given, default=find_project().archive)


def archive_needed(given: str | None, option: str) -> str:
    """The archive's directory, for commands that cannot do without one.

    Raises:
        Usage: no archive is configured.
    """
    found = archive_of(given)
    if not found:
        raise Usage(
            f"where is the archive? say {option} DIR, set LEFTFOLD_ARCHIVE_DIR, or write archive = 'DIR' under "
            f"[tool.leftfold] in pyproject.toml"
        )
    return found


def topic_of(category: str, kafka: str | None) -> tuple[KafkaSettings, str]:
    """The settings of Kafka and the events topic of a category.

    Raises:
        Usage: the cluster has no such topic.
    """
    settings = kafka_settings(kafka)
    with ClusterAdmin(settings) as cluster:
        topic, _ = topic_in(cluster, category)
    return settings, topic


def topic_in(cluster: Any, category: str) -> tuple[str, int]:
    """The events topic of a category, and its number of partitions.

    Raises:
        Usage: the cluster has no such topic.
        ConfigurationError: the login lacks the right to describe the topic.
    """
    topic = events(category)
    # A list of all topics omits those that a login may not see; a request by name gets an error from the broker.
    count: int | None = cluster.partition_counts([topic]).get(topic)
    if count is None:
        known = (name.removesuffix(".events") for name in cluster.topics() if name.endswith(".events"))
        raise unknown("category in the log called", category, known)
    return topic, count


_PATIENCE = 5.0


def last_records(cluster: Any, settings: Any, topic: str, most: int) -> Iterator[RawRecord]:
    """The committed records among the last `most` offsets of each partition; none if the topic does not exist.

    Records behind an open transaction are awaited for five seconds at most.
    """
    if topic not in cluster.partition_counts([topic]):
        return
    starts, ends = cluster.starts([topic]), cluster.ends([topic])
    begin = {p: max(starts.next_offset(topic, p), end - most) for p, end in ends.offsets[topic].items()}
    with closing(KafkaLogReader(settings)) as reader:
        yield from chain.from_iterable(read_to(reader, Position({topic: begin}), ends, patience=_PATIENCE))


_PLACE = re.compile(r"(?P<topic>[^\[\]/]+)(?:\[(?P<p>[0-9]+)\]@|/(?P<q>[0-9]+)/)(?P<offset>[0-9]{1,18})")
_MAX_BYTES = 1_000_000
"""Largest record of a dead letter in bytes; the brokers' default limit is slightly higher."""


class Unroutable(NamedTuple):
    """An event that routers of a process cannot route, at which they end, with the cause."""

    place: RecordAddress
    record: RawRecord
    why: str


def skipped_letters(settings: Any, process: str) -> frozenset[str]:
    """The addresses of records in the process's dead letters, as `topic/partition/offset`: routers skip them."""
    with ClusterAdmin(settings) as cluster:
        letters = last_records(cluster, settings, names.dead(process), sys.maxsize)
        return frozenset(header(letter.headers, "dead_source").decode(errors="replace") for letter in letters)


def place_in(text: str, what: str = "an event; write it as routers tell it: 'orders.events[2]@7'") -> RecordAddress:
    """Parses the address of a record: `orders.events[2]@7` or `orders.events/2/7`.

    Args:
        what: what the address should name, for the error message.

    Raises:
        Usage: the text is no address.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Usage(f"{text!r} is no place of {what}")
    return RecordAddress(found["topic"], int(found["p"] or found["q"]), int(found["offset"]))


def unroutable(app: str, process: Process[Any, Any, Any], place: RecordAddress, settings: Any) -> Unroutable:
    """The event at an address that routers of a process cannot route.

    Raises:
        Usage: the process does not read that topic, or the event can be routed. ContractError: no record is there.
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
    """The dead letters of workers that stopped a partition at these events of their category, which they cannot fold.

    Raises:
        Usage: no worker has written a dead letter for one of the addresses.
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
    """Makes routers skip an event from their next start on, by writing a dead letter for it."""
    dead = names.dead(process)
    with ClusterAdmin(settings) as cluster:
        partition = partition_of(found.record.key or b"", cluster.partitions(dead))
    letter = dead_letter(found.record, f"{why}; {found.why}", partition, _MAX_BYTES)
    write_record(settings, dead, letter)


Servers: TypeAlias = tuple[str | None, str | None, str | None]
"""Kafka, Redis and the archive, as options of a command; None = from the settings."""


@dataclass(frozen=True)
class Workbench:
    """The view store of this process, and factories that can be pickled and sent to tasks."""

    store: BulkStore
    open_log: OpenBulkLog
    open_reader: Callable[[], LogReader]
    open_sink: OpenBulkSink
    open_store: Callable[[], BulkStore]


@contextmanager
def workbench(kafka: str | None, redis: str | None, archive: str | None = None) -> Iterator[Workbench]:
    """A workbench for the given or configured servers and archive; closes its view store at the end."""
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
    """Checks the addresses of the servers, before Spark starts, which takes long.

    Raises:
        ConfigurationError: an address is missing or wrong.
    """
    kafka_settings(kafka), redis_settings(redis), archive_of(archive)


def check_broker(kafka: str | None) -> None:
    """Checks that a broker answers.

    Without the check, a fold that only reads would wait a minute for the first record without a message.

    Raises:
        InfrastructureError: no broker answers.
    """
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        cluster.brokers()


@contextmanager
def store_of(redis: str | None) -> Iterator[BulkStore]:
    """The view store, for commands that need no log; closes it at the end."""
    store: BulkStore = RedisViewStore(redis_settings(redis))
    try:
        yield store
    finally:
        store.close()


def folded_view_of(app: App, name: str) -> View[Any, Any]:
    """The App's view with a name; it must be folded event by event.

    Raises:
        Usage: the App has no such view, or Spark computes it as a whole.
    """
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
    """The App's view with a name.

    Raises:
        Usage: the App has no such view.
    """
    for view in app.views:
        if view.name == name:
            return view
    raise unknown(f"view in app {app.name} called", name, (view.name for view in app.views))
