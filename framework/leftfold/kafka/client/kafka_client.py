"""Sends commands to their topics and waits for the answers on the App's reply topic."""

from __future__ import annotations

import asyncio
import atexit
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from leftfold.client.commands import Client, CommandRequest
from leftfold.client.packing import EncodedCommand
from leftfold.engine.processing.command_wire import DELIVERY_SECONDS, read_reply
from leftfold.errors import ContractError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.client.command_producer import CommandProducer, no_room
from leftfold.kafka.client.in_flight import Answers, CommandAnswer, PendingAnswers, PipelinedSender, TimeoutDiagnosis
from leftfold.kafka.reachability import check_reachable
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from leftfold.ports.protocols import Closing

__all__ = ["KafkaClient"]

_NAP = 0.002
_FAILED_SECONDS = 5.0


class KafkaClient(Client, Closing):
    """A Client that sends commands through Kafka, for any number of threads and tasks.

    Close it, or use it in a `with`.

    Args:
        app: the name of the App whose reply topic receives the answers.
        most: maximum number of commands of one `send_many` in flight.
        delivery: seconds after which a command that has not reached its topic is never decided.

    Raises:
        InfrastructureError: no broker answers, or the App has no reply topic.
    """

    def __init__(
        self, app: str, settings: KafkaSettings, *, most: int = 10_000, delivery: float = DELIVERY_SECONDS
    ) -> None:
        self._settings, self._most = settings, most
        self._pending, self._topics = PendingAnswers(), dict[str, int]()
        check_reachable(settings)
        self._cluster = ClusterAdmin(settings)
        self._diagnosis = TimeoutDiagnosis(self._cluster)
        partitions = self._cluster.partitions(names.replies(app))
        self._producer = CommandProducer(settings, app, self._pending.resolve, delivery)
        self._answers = Answers(settings, names.replies(app), partitions, self._pending, self._producer.poll)
        atexit.register(self.close)

    def close(self, timeout: float = 5.0) -> None:
        """Waits for pending deliveries, `timeout` seconds at most, and closes the client.

        Calls that still wait for an answer fail with OutcomeUnknown. In a forked process it does nothing: librdkafka
        would wait for its threads, which only the other process has.
        """
        if self._pending.is_closed or self._pending.is_forked:
            return
        self._pending.close()
        atexit.unregister(self.close)
        self._producer.close(timeout)
        self._answers.close()
        self._pending.give_up("the client was closed")
        self._cluster.close()

    async def _awaited(self, encoded: EncodedCommand, waiter: _Task, timeout: float) -> CommandAnswer:
        deadline = time.monotonic() + timeout
        while not self._producer.put(encoded):
            if time.monotonic() > deadline:
                raise no_room(encoded, timeout)
            await asyncio.sleep(_NAP)
        await waiter.wait(deadline - time.monotonic())
        if waiter.answer is None:
            why = await asyncio.to_thread(self._why, encoded.topic)
            # The answer may have arrived while the reason was looked up.
            return waiter.answer or OutcomeUnknown(encoded.id.decode(), why)
        return waiter.answer

    async def _asend_request(self, request: CommandRequest, timeout: float) -> Receipt | LeftfoldError:
        encoded = self._producer.pack(request, self._answers.reply_to)
        if encoded.topic not in self._topics:
            await asyncio.to_thread(self._check_topic, encoded.topic)
        waiter = _Task(asyncio.get_running_loop())
        self._pending.add(encoded.id, encoded.body, waiter)
        try:
            return self._outcome(await self._awaited(encoded, waiter, timeout), type(request.command))
        finally:
            self._pending.remove(encoded.id, waiter)

    def _send_requests(
        self, requests: Iterable[CommandRequest], timeout: float, window: int | None = None
    ) -> Iterator[Receipt | LeftfoldError]:
        most = self._most if window is None else window
        sender = PipelinedSender(self._producer, self._pending, self._why, timeout=timeout, most=most)
        classes: deque[type[Command]] = deque()
        for answer in sender.run(self._packed(requests, classes)):
            yield self._outcome(answer, classes.popleft())

    def _packed(
        self, rows: Iterable[CommandRequest], classes: deque[type[Command]]
    ) -> Iterator[EncodedCommand | LeftfoldError]:
        """The commands as records; an error in place of each that cannot be sent.

        Raises:
            InfrastructureError, ConfigurationError: none was sent so far, and this one cannot be sent.
        """
        has_sent, failures = False, _TopicFailures()
        for row in rows:
            classes.append(type(row.command))
            try:
                encoded = self._producer.pack(row, self._answers.reply_to)
                failures.check(encoded.topic, self._check_topic)
            except LeftfoldError as error:
                if not has_sent and not isinstance(error, ContractError):
                    raise
                yield error
                continue
            has_sent = True
            yield encoded

    def _check_topic(self, topic: str) -> None:
        """Checks that a command topic exists; the producer would report a missing one only half a minute later."""
        self._pending.check_open()
        if topic not in self._topics:
            self._topics[topic] = self._cluster.partitions(topic)

    def _outcome(self, answer: CommandAnswer, command: type[Command]) -> Receipt | LeftfoldError:
        if isinstance(answer, LeftfoldError):
            return answer
        try:
            return read_reply(answer, command, self._topics[names.commands(command.__leftfold__.category)])
        except ContractError as error:
            return error

    def _why(self, topic: str) -> str:
        return self._answers.refusal or self._diagnosis.why(topic.rpartition(".")[0])


class _TopicFailures:
    """The topics that failed their check, so that thousands of commands do not ask for one again and again."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, LeftfoldError]] = {}

    def check(self, topic: str, check: Callable[[str], None]) -> None:
        """Checks a topic, unless it has just failed; raises its failure."""
        if topic in self._failed:
            failed, error = self._failed[topic]
            if time.monotonic() - failed < _FAILED_SECONDS:
                raise error.with_traceback(None)  # else it would grow with each command
        try:
            check(topic)
        except LeftfoldError as error:
            self._failed[topic] = time.monotonic(), error
            raise


class _Task:
    """A waiter on an asyncio event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._woken = loop, loop.create_future()
        self.answer: CommandAnswer | None = None

    async def wait(self, seconds: float) -> None:
        """Waits for the answer or the timeout."""
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()

    def resolve(self, answer: CommandAnswer) -> None:
        """Passes the answer to the event loop, unless the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, answer)

    def _take(self, answer: CommandAnswer) -> None:
        self.answer = answer
        self._wake()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)
