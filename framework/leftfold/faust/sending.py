"""Writes inputs of a process: idempotently, in order, many under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError

from leftfold.engine.batch import Outgoing
from leftfold.engine.inputs import NO_INPUT
from leftfold.engine.router import MAX_BYTES
from leftfold.errors import LeftfoldError
from leftfold.faust.apps import translated
from leftfold.ports import RawRecord

__all__ = ["Sender"]

_MOST, _BATCH = 5000, 262_144
"""Records under way, and bytes of a batch."""


class Sender:
    """A producer that tells when a record is written; `ends` are the next offsets by partition, as far as known."""

    def __init__(self, dialect: Mapping[str, Any], topic: str, partitions: int, max_bytes: int = MAX_BYTES) -> None:
        self._dialect, self._topic, self._partitions, self._max_bytes = dialect, topic, partitions, max_bytes
        self.ends: dict[int, int] = {}
        self._open = asyncio.Semaphore(_MOST)
        self._is_broken = False
        """Something was not written: nothing behind it may be."""

    async def start(self, failed: Callable[[BaseException], None]) -> None:
        """Connects; `failed` is told whatever is not written."""
        self._failed = failed
        self._producer = aiokafka.AIOKafkaProducer(
            **self._dialect,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            request_timeout_ms=20_000,
            max_batch_size=_BATCH,
            max_request_size=self._max_bytes,
        )
        try:
            await self._producer.start()
        except KafkaError as error:
            raise translated(error, f"connecting to write to {self._topic}") from error

    async def stop(self) -> None:
        """Writes what is under way, unless something was not written."""
        await self._producer.stop()

    async def draw_line(self) -> None:
        """Writes a record that is no input into every partition: what others have written lies before that.

        The end of a partition would not do: it lies behind markers, where no reader of records ever gets.
        """
        headers: Any = NO_INPUT
        for partition in range(self._partitions):
            sent = await self._producer.send(self._topic, b"{}", b"@", partition=partition, headers=headers)
            # Nobody may wait for it by the time that it fails.
            sent.add_done_callback(lambda written: written.cancelled() or written.exception())
            place = await sent
            self.ends[partition] = max(place.offset + 1, self.ends.get(partition, 0))

    async def send(
        self, source: RawRecord, out: Outgoing | None, done: Callable[[RawRecord], None], topic: str = ""
    ) -> None:
        """Writes a record, or nothing; `done` is called once it is written.

        Args:
            topic: another one than that of the inputs.
        """
        if out is None:
            done(source)
            return
        await self._open.acquire()
        if self._is_broken:
            await asyncio.Event().wait()
        headers: Any = list(out.headers)
        to = topic or self._topic
        sent = await self._producer.send(to, out.value, out.key, partition=out.partition, headers=headers)
        sent.add_done_callback(lambda written: self._written(source, written, done, to))

    async def tell(self, topic: str, value: bytes) -> None:
        """Writes to another topic and waits for it."""
        await self._producer.send_and_wait(topic, value, partition=0)

    def _written(
        self, source: RawRecord, written: asyncio.Future[Any], done: Callable[[RawRecord], None], topic: str
    ) -> None:
        self._open.release()
        error = None if written.cancelled() else written.exception()
        if written.cancelled() or error is not None:
            where = f"{source.topic}[{source.partition}]@{source.offset}"
            failure = translated(error or asyncio.CancelledError(), f"the input for {where} is not written to {topic}")
            if not self._is_broken:
                self._give_up(failure)
            self._failed(failure)
            return
        if topic == self._topic:
            place = written.result()
            self.ends[place.partition] = max(place.offset + 1, self.ends.get(place.partition, 0))
        done(source)

    def _give_up(self, failure: LeftfoldError) -> None:
        """Nothing that waits behind what was not written may be: whoever saw it would take that for a duplicate later.

        The numbers that a producer gives its batches do not prevent it: of one that has not written to a partition yet,
        or not for a day, brokers take any.
        """
        self._is_broken = True
        self._producer._sender.sender_task.cancel()  # noqa: SLF001  # no public way ends it without writing on
        self._producer._message_accumulator.fail_all(failure)  # noqa: SLF001
