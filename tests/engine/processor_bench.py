"""Processors over memory with the log around them, so that tests send records and look at what comes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from leftfold import Command, Decider, Process
from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.engine.processing.command_wire import command_headers
from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.engine.processing.process_wire import Router
from leftfold.engine.processing.worker_tasks import ProcessRefold
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import MessageCodec
from leftfold.ports.message_codec import header as header_in
from leftfold.ports.outgoing import Batch, Outgoing
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import baskets
from tests.domains.trade import NOW, PATIENCE, Paid, Placed, Reserved, checkout

__all__ = ["DUE", "END", "PARTITIONS", "CommandBench", "ProcessBench", "header", "headers", "home"]

PARTITIONS, END = 4, 1000
DUE = NOW + PATIENCE


def home(key: bytes) -> int:
    """The partition of a key."""
    return partition_of(key, PARTITIONS)


def header(record: Outgoing, name: str) -> bytes:
    """A header of an outgoing record."""
    return dict(record.headers)[name]


def headers(records: Sequence[Outgoing], name: str) -> list[bytes]:
    """One header of many."""
    return [header(record, name) for record in records]


class CommandBench:
    """One processor that holds every partition; `now` is the time of the broker in seconds, `clock` the worker's.

    A process `checkout` of another App sends to it, each partition of whose inputs ends at `END`.
    """

    def __init__(self, decider: Decider[Any, Any, Any] = baskets, max_bytes: int = 1_000_000) -> None:
        self.now, self.clock, self.offset, self.asked = 1000.0, 0.0, 0, 0
        self.codec: MessageCodec[Any] = MessageCodec(decider.commands)
        self.processor = CommandProcessor(
            "shop",
            decider,
            partition_of=home,
            max_bytes=max_bytes,
            clock=lambda: self.clock,
            partitions=lambda topic: PARTITIONS,
            senders=("checkout",),
            end=self._end,
        )
        for partition in range(PARTITIONS):
            self.processor.hold(partition, {}, end=0)

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
            home(key),
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
        return self.processor.held[home(key.encode())].copy_of(key, self.now)


class ProcessBench:
    """A processor of a process, the log of its inputs, and what came of them."""

    def __init__(self, process: Process[Any, Any, Any] = checkout, max_bytes: int = 1_000_000) -> None:
        self.process, self.router = process, Router("trade", process, home)
        self.missing: str | None = None
        """A topic that does not exist."""
        self.processor = ProcessManagerProcessor(
            "trade",
            process,
            partition_of=home,
            partitions=lambda topic: 0 if topic == self.missing else PARTITIONS,
            max_bytes=max_bytes,
        )
        self.stores: dict[int, dict[str, bytes]] = {partition: {} for partition in range(PARTITIONS)}
        for partition, store in self.stores.items():
            self.processor.hold(partition, store, end=0)
        self.ends = [0] * PARTITIONS
        self.log, self.letters = list[RawRecord](), list[RawRecord]()
        self.sent, self.traces, self.refused = list[Outgoing](), list[str](), 0

    @property
    def dead(self) -> list[str]:
        """The reasons of its dead letters."""
        return [header_in(letter.headers, "dead_reason").decode() for letter in self.letters]

    def event(self, event: Placed | Reserved | Paid, offset: int, topic: str = "orders.events") -> RawRecord:
        """The event as the router sends it; its source is another place for each offset."""
        codec = self.processor._reactor.events
        about = [
            ("ce_type", codec.types[type(event)]),
            ("ce_id", f"{topic}{offset}".encode()),
            ("ce_time", b"2026-01-01T00:00:00Z"),
        ]
        routed = self.router.route(RawRecord(topic, 0, offset, event.order.encode(), codec.encode(event), about))
        assert routed is not None
        return self.record(routed)

    def record(self, out: Outgoing) -> RawRecord:
        """A record as it stands among the inputs."""
        self.ends[out.partition] += 1
        return RawRecord(
            "checkout.commands", out.partition, self.ends[out.partition] - 1, out.key, out.value, out.headers
        )

    def answer(self, command: Outgoing, type_: bytes, value: object, offset: int = 0) -> RawRecord:
        """What a worker answers to a command."""
        key = header(command, "reply_key")
        about = [
            ("ce_type", type_),
            ("ce_id", b"answer"),
            ("ce_time", b"2026-01-01T00:00:00Z"),
            ("ce_causationid", header(command, "ce_id")),
            ("origin", f"stock.commands/0/{offset}/0".encode()),
        ]
        return self.record(Outgoing(home(key), key, json.dumps(value).encode(), about))

    def take(self, *records: RawRecord) -> dict[str, int]:
        """Reacts to inputs and commits; the counts of the batch."""
        self.log += records
        return self._commit(self.processor.process(records))

    def kill(self, record: RawRecord) -> None:
        """The record has killed its worker again and again."""
        self.log.append(record)
        self._commit(self.processor.bury(record, "a worker died 3 times at this command"))

    def _commit(self, batch: Batch) -> dict[str, int]:
        self.processor.commit(batch, {})
        self.sent = [out for sent in batch.sent.values() for out in sent]
        self.letters += [RawRecord("checkout.dead", o.partition, 0, o.key, o.value, o.headers) for o in batch.dead]
        self.traces += [failure.trace for failure in batch.failures.values()]
        return batch.counts

    def again(self, process: Process[Any, Any, Any] | None = None) -> ProcessBench:
        """Another processor that takes over what this one wrote."""
        other = ProcessBench(process or self.process)
        other.ends = self.ends
        for partition, store in self.stores.items():
            other.stores[partition].update(store)
            other.processor.hold(partition, other.stores[partition], end=0)
        return other

    def state(self) -> dict[str, bytes]:
        """What the processor has written."""
        return {key: value for store in self.stores.values() for key, value in store.items()}

    def folded(self, process: Process[Any, Any, Any] | None = None, *, letters: bool = True) -> dict[str, bytes]:
        """The states that a process makes of the same inputs from nothing; `refused` counts what it could not take."""
        states: dict[str, bytes] = {}
        self.refused = 0
        for partition in range(PARTITIONS):
            refold = ProcessRefold(process or self.process, {})
            for letter in self.letters if letters else ():
                if letter.partition == partition:
                    refold.skip(letter)
            for record in self.log:
                if record.partition == partition:
                    refold.add(record)
            while refold.changed:
                refold.take(1)
            self.refused += refold.refused
            states |= dict(refold.store.items())
        return states
