"""Records of a partition in one message: what Faust does for each message costs five times what routing it does."""

from __future__ import annotations

from typing import Any, ClassVar

from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from leftfold.faust.progress import OrderedProgress, Progress
from leftfold.faust.transport import CommittedConsumer, CommittedThread, CommittedTransport

__all__ = ["Bundle", "BundlingTransport"]


class Bundle:
    """What one fetch brought of one partition, as Faust expects a record: `value` holds the records in their order."""

    timestamp_type, headers, key, checksum = 0, (), None, None
    serialized_key_size = serialized_value_size = 0

    def __init__(self, records: list[Any]) -> None:
        last = records[-1]
        self.topic, self.partition, self.offset = last.topic, last.partition, last.offset
        self.timestamp, self.value = last.timestamp, records


class _Thread(CommittedThread):
    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        records = await super().getmany(active_partitions, timeout)
        return {tp: [Bundle(found)] for tp, found in records.items() if found}


class _Consumer(CommittedConsumer):
    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    def _made(self) -> Progress:
        return OrderedProgress()

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Between the ends of two bundles there is none, whatever Faust thinks; what is committed is not its count."""


class BundlingTransport(CommittedTransport):
    """A transport of committed records, a bundle to a message; every record counts."""

    Consumer: ClassVar[type[CommittedConsumer]] = _Consumer
    whole = True
