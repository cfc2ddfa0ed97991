"""Commands sent and not yet answered: their number is bounded, a thread reads answers, timeouts are explained."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, TopicPartition

from leftfold.errors import ContractError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.client.command_producer import CommandProducer, EncodedCommand, no_room
from leftfold.kafka.errors import NOT_ALLOWED, QuietLog, translated
from leftfold.kafka.records import KafkaMessage, is_packed, raw, read_behind, stand_in
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names

__all__ = ["Answers", "CommandAnswer", "PendingAnswers", "PipelinedSender", "TimeoutDiagnosis"]


CommandAnswer: TypeAlias = bytes | LeftfoldError


class AnswerWaiter(Protocol):
    """Somebody who waits for an answer."""

    def resolve(self, answer: CommandAnswer) -> None:
        """Takes the answer, in the thread that has read it; it must not block."""


class _Waiting(NamedTuple):
    body: tuple[object, ...]
    waiter: AnswerWaiter


class PendingAnswers:
    """Who waits for the answer to which command id; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[_Waiting]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, id_: bytes, body: tuple[object, ...], waiter: AnswerWaiter) -> None:
        """Waits for an answer; several may wait for the answer to one command that is sent again.

        Raises:
            ContractError: another command with this id is still waiting, and answers could not be told apart.
        """
        with self._lock:
            waiting = self._waiting.get(id_)
            if waiting is None:
                self._waiting[id_] = [_Waiting(body, waiter)]
            elif waiting[0].body == body:
                waiting.append(_Waiting(body, waiter))
            else:
                raise ContractError(
                    f"command id {id_.decode()!r} belongs to another command that is still under way; "
                    f"every command needs an id of its own"
                )

    def remove(self, id_: bytes, waiter: AnswerWaiter) -> None:
        """Stops waiting, if it has not been resolved already."""
        with self._lock:
            left = [waiting for waiting in self._waiting.pop(id_, ()) if waiting.waiter is not waiter]
            if left:
                self._waiting[id_] = left

    def resolve(self, id_: bytes, answer: CommandAnswer) -> None:
        """Hands an answer to everyone who waits for it; one that nobody waits for is ignored."""
        with self._lock:
            waiting = self._waiting.pop(id_, ())
        for one in waiting:
            one.waiter.resolve(answer)

    def give_up(self, why: str) -> None:
        """Tells everyone that no answer will come."""
        with self._lock:
            ids = list(self._waiting)
        for id_ in ids:
            self.resolve(id_, OutcomeUnknown(id_.decode(), why))


_MANY = 500
_IDLE = 0.1
_log = logging.getLogger(__name__)


class Answers:
    """Follows one partition of a reply topic from where it ends now, and resolves what is pending.

    Args:
        partitions: of the reply topic. tick: called in the reading thread, ten times a second at least.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, partitions: int, pending: PendingAnswers, tick: Callable[[], None]
    ) -> None:
        self.refusal = ""
        """Why the brokers give it no answers."""
        self._pending, self._tick, self._packed = pending, tick, settings.librdkafka()
        self._consumer = Consumer(_config(settings), logger=QuietLog("replies"))
        place = TopicPartition(topic, random.randrange(partitions))
        self.reply_to = f"{topic}/{place.partition}".encode()
        try:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=settings.request_timeout)[1]
            self._consumer.assign([place])
        except KafkaException as error:
            self._consumer.close()
            raise translated(
                error,
                doing=f"reading {topic}",
                brokers=settings.bootstrap_servers,
                waited=settings.request_timeout,
            ) from error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"leftfold answers {topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                first = self._consumer.poll(_IDLE)
                self._tick()
                if first is not None:
                    self._take_all([first, *self._consumer.consume(_MANY, 0)])
            except Exception:  # noqa: BLE001  # who waits is told at the deadline; the next answers may be readable
                _log.exception("reading answers")
                self._stop.wait(_IDLE)

    def _take_all(self, messages: Iterable[KafkaMessage]) -> None:
        """Takes each by itself: anybody who may write to the topic can have written one that nobody can read."""
        for message in messages:
            try:
                self._take(message)
            except Exception:  # noqa: BLE001  # those behind it are for others
                _log.exception("reading an answer")

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if is_packed(message):
            # Nobody can tell what is in it; it must not keep back the answers behind it.
            read_behind(self._consumer, stand_in(self._packed, message))
        if error is not None:
            _log.warning("reading answers: %s", error)
            if error.code() in NOT_ALLOWED:
                self.refusal = str(translated(error, doing="no answer can be read"))
            return
        self.refusal = ""
        answer = raw(message)
        for name, value in reversed(answer.headers):
            if name == "ce_causationid" and isinstance(value, bytes):
                self._pending.resolve(value, answer.value or b"")
                return


def _config(settings: KafkaSettings) -> dict[str, object]:
    return {
        **settings.librdkafka(),
        "group.id": f"leftfold.replies.{uuid4()}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Answers are written outside transactions; nobody's open transaction may hold them back.
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "check.crcs": True,
        "fetch.queue.backoff.ms": 2,
        # Answers are short, and whoever may write to the topic can write more than this client takes.
        "queued.max.messages.kbytes": 16_384,
        "reconnect.backoff.max.ms": 1000,
    }


class _Flight:
    """One command under way."""

    __slots__ = ("answer", "burst", "deadline", "id", "topic")

    def __init__(self, burst: PipelinedSender, topic: str, id_: bytes, deadline: float) -> None:
        self.burst, self.topic, self.id, self.deadline = burst, topic, id_, deadline
        self.answer: CommandAnswer | None = None

    def resolve(self, answer: CommandAnswer) -> None:
        """Lands it. The answer is set before the look at who waits: a waiter looks the other way round."""
        self.answer = answer
        if self.burst.awaited is self:
            with self.burst.changed:
                self.burst.changed.notify()


class PipelinedSender:
    """Sends parcels one behind the other and collects their answers in order.

    Args:
        timeout: seconds that each answer may take. most: how many may be under way at once.
        why: says why nothing was answered on a topic, once a deadline has passed.
    """

    def __init__(
        self, outbox: CommandProducer, pending: PendingAnswers, why: Callable[[str], str], *, timeout: float, most: int
    ) -> None:
        self._outbox, self._pending, self._why = outbox, pending, why
        self._timeout, self._most = timeout, most
        self._flights: deque[_Flight] = deque()
        self.changed = threading.Condition()
        self.awaited: _Flight | None = None

    def run(self, parcels: Iterable[EncodedCommand | LeftfoldError]) -> Iterator[CommandAnswer]:
        """The answers to all parcels, in their order; an error instead of a parcel is its own answer."""
        flights = self._flights
        try:
            for encoded in parcels:
                self._launch(encoded)
                while flights and (len(flights) >= self._most or flights[0].answer is not None):
                    yield self._landed()
            while flights:
                yield self._landed()
        finally:
            for flight in flights:
                self._pending.remove(flight.id, flight)

    def _launch(self, encoded: EncodedCommand | LeftfoldError) -> None:
        deadline = time.monotonic() + self._timeout
        if isinstance(encoded, LeftfoldError):
            flight = _Flight(self, "", b"", deadline)
            flight.answer = encoded
            self._flights.append(flight)
            return
        flight = _Flight(self, encoded.topic, encoded.id, deadline)
        self._flights.append(flight)
        try:
            self._pending.add(encoded.id, encoded.body, flight)
            if not self._outbox.put_by(encoded, deadline):
                raise no_room(encoded, self._timeout)
        except LeftfoldError as error:
            self._pending.remove(encoded.id, flight)
            flight.answer = error

    def _landed(self) -> CommandAnswer:
        """The answer to the oldest one, waited for until its deadline."""
        flight = self._flights[0]
        if flight.answer is None:
            with self.changed:
                self.awaited = flight
                self.changed.wait_for(lambda: flight.answer is not None, flight.deadline - time.monotonic())
                self.awaited = None
        answer = flight.answer if flight.answer is not None else self._overdue(flight)
        self._flights.popleft()
        return answer

    def _overdue(self, flight: _Flight) -> CommandAnswer:
        why = self._why(flight.topic)
        self._pending.remove(flight.id, flight)
        # It may have come while the reason was looked for.
        return flight.answer if flight.answer is not None else OutcomeUnknown(flight.id.decode(), why)


_ASK_SECONDS = 1.0
_KEEP_SECONDS = 5.0


class TimeoutDiagnosis:
    """Asks who decides a category; thousands of commands that time out together ask once."""

    def __init__(self, cluster: ClusterAdmin) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def why(self, category: str) -> str:
        """A reason in words, with what to do about it."""
        with self._lock:
            asked, reason = self._known.get(category, (-_KEEP_SECONDS, ""))
            if time.monotonic() - asked > _KEEP_SECONDS:
                reason = self._ask(category)
                self._known[category] = time.monotonic(), reason
            return reason

    def _ask(self, category: str) -> str:
        topic, start = names.commands(category), f"start one: leftfold run {category}"
        try:
            owners = self._cluster.owners(category, timeout=_ASK_SECONDS)
        except LeftfoldError as error:
            return f"no answer before the deadline ({error})"
        if not owners:
            return f"no worker owns {topic} (there is no group of workers); {start}"
        groups = ", ".join(f"{group} has {members}" for group, members in sorted(owners.items()))
        if not any(owners.values()):
            return f"no worker owns {topic} (group {groups} members); {start}"
        return f"no answer before the deadline, though group {groups} members; how far behind are they? leftfold status"
