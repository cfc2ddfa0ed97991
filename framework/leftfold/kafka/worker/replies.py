"""Sends replies to clients after the commit, outside the transaction, and only to existing reply topics."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from leftfold.engine.processing.command_wire import DIGEST, ack, small
from leftfold.errors import refused
from leftfold.kafka.errors import QuietLog, code_of
from leftfold.model.position import Position
from leftfold.ports.message_codec import JSON
from leftfold.ports.outgoing import Reply
from leftfold.ports.protocols import Report

__all__ = ["Replies"]

_ACK = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.ack.v1"), ("content-type", JSON)]
_NACK = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.nack.v1"), ("content-type", JSON)]


LARGEST = 900_000
"""Maximum bytes of a reply; a reply topic accepts that by default."""
ASKED, ASKED_SECONDS = 50, 10.0
"""Maximum number of topic look-ups per period in seconds, since clients may send made-up topic names."""
# What Kafka allows in a topic name; other names are not looked up.
_TO = re.compile(rb"([a-zA-Z0-9._-]{1,240}\.replies)/([0-9]{1,6})")


class Replies:
    """An idempotent producer of replies; a reply that cannot be sent is counted, since the client may ask again.

    Args:
        partitions: returns the partition count of a topic, 0 if it does not exist; called at a limited rate, and not
            again for partitions that are known to exist.
        report: called when the producer was replaced after a fatal error. clock: a monotonic clock, in seconds.
        own: the App's own reply topic, which must be writable; other topics in `reply_to` need not be.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        partitions: Callable[[str], int],
        counts: Counter[str],
        report: Report = lambda what, details: None,
        clock: Callable[[], float] = time.monotonic,
        own: str = "",
    ) -> None:
        self._config = {
            "enable.idempotence": True,
            "linger.ms": 0,
            "retry.backoff.ms": 10,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "partitioner": "murmur2_random",
            **config,
            "error_cb": self._error,
            "on_delivery": self._lost,
        }
        self._own, self._denied = own, ""
        self._fatal = ""
        self._producer = self._new()
        self._partitions, self._counts, self._report = partitions, counts, report
        self._places: dict[bytes, tuple[str, int]] = {}
        self._counts_of: dict[str, int] = {}
        self._clock, self._asked, self._since = clock, 0, clock()

    def send(self, replies: Iterable[Reply], topic: str, ends: Mapping[int, int]) -> None:
        """Sends the replies of a committed batch; `ends` are the known end offsets of `topic` by partition."""
        if self._fatal:
            self._replace()
        positions = {p: Position.at(topic, p, end).to_json() for p, end in ends.items()}
        for reply in replies:
            place = self._place(reply.to)
            if place is None:
                self._counts["replies_unanswerable"] += 1
                continue
            if reply.error is None:
                value = ack(reply.version, reply.events, positions.get(reply.partition, "{}"))
                headers: Any = [*_ACK, ("ce_causationid", reply.command_id)]
            else:
                value = json.dumps(small(reply.error, LARGEST), separators=(",", ":")).encode()
                headers = [*_NACK, ("ce_causationid", reply.command_id)]
            if reply.digest:
                headers.append((DIGEST, reply.digest))
            if not self._sent(place, value, headers):
                self._counts["replies_lost"] += 1
        self._poll(0)

    def check(self) -> None:
        """Serves delivery reports.

        Raises:
            ConfigurationError: this login may not write to the App's own reply topic.
        """
        self._poll(0)
        if self._denied:
            raise refused(f"answering in {self._own}: {self._denied}")

    def flush(self, timeout: float) -> None:
        """Waits until the sent replies are delivered, `timeout` seconds at most."""
        self._serve(self._producer.flush, timeout)

    def _sent(self, place: tuple[str, int], value: bytes, headers: Any) -> bool:
        """Produces a reply, with a new producer after a fatal error; False if the reply is lost."""
        for _ in range(2):
            try:
                self._producer.produce(place[0], value, None, place[1], headers=headers)
            except BufferError:
                self._poll(0.01)
                return False
            except KafkaException as error:
                self._poll(0.01)
                if not (self._fatal or code_of(error) == KafkaError._FATAL):
                    return False
                self._fatal = self._fatal or str(error)
                self._replace()
            else:
                return True
        return False

    def _poll(self, seconds: float) -> None:
        self._serve(self._producer.poll, seconds)

    def _serve(self, serve: Callable[[float], object], seconds: float) -> None:
        try:
            serve(seconds)
        except (KafkaException, AttributeError, SystemError) as error:
            # A fatal error is raised here; with one pending, confluent-kafka may fail at its last log line instead.
            self._fatal = self._fatal or str(error)

    def _lost(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self._counts["replies_lost"] += 1
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and message.topic() == self._own:
            self._denied = f"{error.str()} ({error.name()})"

    def _error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = str(error)

    def _replace(self) -> None:
        """Replaces a producer after a fatal error; its unsent replies are lost, and clients ask for them again."""
        self._counts["reply_senders_replaced"] += 1
        self._report("sender of answers replaced", {"why": self._fatal})
        self._fatal, self._producer = "", self._new()

    def _new(self) -> Producer:
        return Producer(self._config, logger=QuietLog("answers"))

    def _place(self, to: bytes) -> tuple[str, int] | None:
        """Parses `topic/partition`; None unless it is an existing partition of a reply topic."""
        place = self._places.get(to)
        if place is None and (found := _TO.fullmatch(to)):
            topic, partition = found[1].decode(), int(found[2])
            if partition >= self._counts_of.get(topic, 0) and self._may_ask() and (count := self._partitions(topic)):
                self._counts_of[topic] = count
            if partition < self._counts_of.get(topic, 0):
                place = self._places[to] = topic, partition
        return place

    def _may_ask(self) -> bool:
        if self._clock() - self._since > ASKED_SECONDS:
            self._asked, self._since = 0, self._clock()
        self._asked += 1
        return self._asked <= ASKED
