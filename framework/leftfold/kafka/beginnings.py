"""Where reactions began: recorded, so that one which has lost its place stops instead of beginning elsewhere."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from leftfold import names
from leftfold.app import App
from leftfold.engine.moment import place_at
from leftfold.engine.received import now_text
from leftfold.errors import InfrastructureError
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.errors import kafka_error, translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.shared_log import member_config
from leftfold.position import Position
from leftfold.reaction import Reaction, Since

__all__ = ["Beginnings", "begin"]

Place: TypeAlias = tuple[str, int]
_SECONDS = 20.0
_OTHERS = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError.NON_EMPTY_GROUP}
)  # fmt: skip


class Beginnings:
    """Says where each partition of a reaction goes on: at its group's offset, which is set once, and recorded."""

    def __init__(self, app: App, reaction: Reaction[Any], settings: KafkaSettings) -> None:
        self._app, self._reaction, self._settings = app, reaction, settings
        self._known: set[Place] = set()

    def offsets(self, consumer: Consumer, places: Collection[Place]) -> dict[Place, int]:
        """Where to go on; a partition that nobody has read yet begins where the reaction says.

        Raises:
            InfrastructureError: the group has no offset where the reaction has begun; or no broker answers.
        """
        doing = f"asking where reaction {self._reaction.name} stands"
        try:
            committed = consumer.committed([TopicPartition(*place) for place in places], timeout=_SECONDS)
        except KafkaException as error:
            raise translated(error, doing=doing) from error
        for tp in committed:
            if tp.error is not None:
                raise translated(tp.error, doing=doing)
        found = {(tp.topic, tp.partition): tp.offset for tp in committed if tp.offset >= 0}
        if set(places) <= found.keys() & self._known:
            return found
        self._known |= self._recorded()
        missing = [place for place in places if place not in found]
        if lost := sorted(self._known.intersection(missing)):
            raise InfrastructureError(self._is_lost(lost[0]))
        starts = self.starts(consumer, missing, self._reaction.since)
        if starts:
            self._commit(consumer, starts)
        self.record({place: offset for place, offset in (found | starts).items() if place not in self._known})
        return found | starts

    def starts(self, consumer: Consumer, places: Iterable[Place], since: Since) -> dict[Place, int]:
        """Where partitions begin: behind what is committed now, at 0, or behind what was appended before a time.

        Raises:
            LogHole: the topic has lost what would tell. InfrastructureError: no broker answers.
        """
        places = list(places)
        if since == "start":
            return dict.fromkeys(places, 0)
        if not isinstance(since, datetime):
            return {place: self._end(consumer, place) for place in places}
        moment, topics = int(since.timestamp() * 1000), sorted({topic for topic, _ in places})
        with Cluster(self._settings) as cluster:
            position = Position.union(place_at(cluster, topic, moment) for topic in topics)
        return {(topic, partition): position.next_offset(topic, partition) for topic, partition in places}

    def record(self, offsets: Mapping[Place, int]) -> None:
        """Writes down that these partitions have begun, before anything is done in them.

        Raises:
            InfrastructureError: it is not written.
        """
        if not offsets:
            return
        topic, failures = names.begun(self._reaction.name), list[str]()
        producer = Producer(
            {**self._settings.librdkafka(), "enable.idempotence": True, "delivery.timeout.ms": int(_SECONDS * 1000)},
            logger=QuietLog("reaction"),
        )
        for (of, partition), offset in offsets.items():
            value = json.dumps({"offset": offset, "at": now_text().decode()}, separators=(",", ":"))
            producer.produce(
                topic,
                value.encode(),
                f"{of}/{partition}".encode(),
                0,
                on_delivery=lambda error, _: failures.append(error.str()) if error is not None else None,
            )
        if producer.flush(_SECONDS) or failures:
            raise InfrastructureError(f"{topic}: where the reaction begins is not written: {failures or 'no answer'}")
        self._known |= offsets.keys()

    def _end(self, consumer: Consumer, place: Place) -> int:
        """The last stable offset: what is in a transaction that is still open happens after the beginning."""
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(*place), timeout=_SECONDS)[1])
        except KafkaException as error:
            raise translated(error, doing=f"asking for the end of {place[0]}[{place[1]}]") from error

    def _recorded(self) -> set[Place]:
        topic = names.begun(self._reaction.name)
        log, found = KafkaLogReader(self._settings), set[Place]()
        try:
            ends = log.ends([topic])
            log.seek(log.starts([topic]))
            while not log.position().covers(ends):
                for record in log.poll(500, 1.0):
                    of, _, partition = (record.key or b"").decode().rpartition("/")
                    found.add((of, int(partition)))
        finally:
            log.close()
        return found

    def _commit(self, consumer: Consumer, starts: Mapping[Place, int]) -> None:
        doing = f"beginning reaction {self._reaction.name}"
        try:
            done = consumer.commit(
                offsets=[TopicPartition(t, p, offset) for (t, p), offset in starts.items()], asynchronous=False
            )
        except KafkaException as error:
            raise translated(error, doing=doing) from error
        for tp in done or ():
            if tp.error is not None:
                raise translated(KafkaException(tp.error), doing=doing) from KafkaException(tp.error)

    def _is_lost(self, place: Place) -> str:
        name = self._reaction.name
        return (
            f"reaction {name} has begun, but its group {names.reacting(self._app.name, name)} has no offset for "
            f"{place[0]}[{place[1]}]: Kafka forgets those of a group that nobody used for offsets.retention.minutes. "
            f"It does not begin anew by itself; say where: leftfold reactions begin {name} --since TIME"
        )


def begin(app: App, reaction: Reaction[Any], settings: KafkaSettings) -> None:
    """Sets where a reaction begins that has never run, before anybody can write what it is to act on.

    Raises:
        InfrastructureError: its place is lost; or no broker answers.
    """
    with Cluster(settings) as cluster:
        counts = cluster.partition_counts(names.events(category) for category in reaction.categories)
    places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
    consumer = Consumer(member_config(settings, names.reacting(app.name, reaction.name)), logger=QuietLog("reaction"))
    try:
        Beginnings(app, reaction, settings).offsets(consumer, places)
    except InfrastructureError as error:
        cause = error.__cause__
        if not (isinstance(cause, KafkaException) and kafka_error(cause).code() in _OTHERS):
            raise
        # Somebody acts already: whoever gets a partition begins it.
    finally:
        consumer.close()
