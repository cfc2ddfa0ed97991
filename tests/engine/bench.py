"""A processor over memory with the log around it, so that tests send records and look at what comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leftfold import Command, Decider, memory
from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.engine.processing.command_wire import command_headers
from leftfold.memory import MemoryStates
from leftfold.model.keys import partition_of
from leftfold.ports.codec import MessageCodec
from leftfold.ports.outgoing import Batch, Outgoing
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import baskets

__all__ = ["END", "LaneBench", "memory"]

PARTITIONS, END = 4, 1000


class LaneBench:
    """One processor that holds every partition; `now` is the time of the broker in seconds, `clock` the worker's.

    A process `checkout` of another App sends to it, each partition of whose inputs ends at `END`.
    """

    def __init__(self, decider: Decider[Any, Any, Any] = baskets, max_bytes: int = 1_000_000) -> None:
        self.now, self.clock, self.offset, self.asked = 1000.0, 0.0, 0, 0
        self.codec: MessageCodec[Any] = MessageCodec(decider.commands)
        self.processor = CommandProcessor(
            "shop",
            decider,
            partition_of=lambda key: partition_of(key, PARTITIONS),
            max_bytes=max_bytes,
            clock=lambda: self.clock,
            partitions=lambda topic: PARTITIONS,
            senders=("checkout",),
            end=self._end,
        )
        for partition in range(PARTITIONS):
            self.processor.hold(partition, MemoryStates(), end=0)

    def _end(self, topic: str, partition: int) -> int:
        self.asked += 1
        return END

    def record(
        self, command: Command, id_: str = "", *, headers: Mapping[str, Any] | None = None, **changes: Any
    ) -> RawRecord:
        """The command as a client writes it; `headers` replaces or (with `...`) drops headers, `changes` fields."""
        self.offset += 1
        key = getattr(command, command.__leftfold__.key).encode()
        found: dict[str, Any] = dict(
            command_headers(
                command,
                id=id_ or f"c{self.offset}",
                source="test",
                at=b"2026-01-01T00:00:00Z",
                type_=self.codec.types[type(command)],
                reply_to=b"replies/0",
            )
        )
        found |= headers or {}
        record = RawRecord(
            "baskets.commands",
            partition_of(key, PARTITIONS),
            self.offset,
            key,
            self.codec.encode(command),
            tuple((name, value) for name, value in found.items() if value is not ...),
            int(1000 * self.now),
        )
        return record._replace(**changes)

    def run(self, *records: RawRecord) -> Batch:
        """Decides and commits one batch."""
        batch = self.processor.process(records)
        self.processor.commit(batch, {})
        return batch

    def send(self, *commands: Command) -> Batch:
        """Decides and commits one batch of commands with ids of their own."""
        return self.run(*map(self.record, commands))

    def state(self, key: str) -> Any:
        """The committed stream."""
        return self.processor.held[partition_of(key.encode(), PARTITIONS)].copy_of(key, self.now)


def header(record: Outgoing, name: str) -> bytes:
    """A header of an outgoing record."""
    return dict(record.headers)[name]


def headers(records: Sequence[Outgoing], name: str) -> list[bytes]:
    """One header of many."""
    return [header(record, name) for record in records]
