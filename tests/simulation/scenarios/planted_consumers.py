"""Bugs that are planted in routers, process managers and reactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leftfold.engine.processing.process_reactor import Reactor
from leftfold.engine.reactions.pending import Frontier, PendingDelivery
from leftfold.kafka import consumer_group
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.input_producer import InputProducer
from leftfold.kafka.process_router import ProcessRouter
from tests.simulation.scenarios.bug import Bug, Patch
from tests.simulation.scenarios.posting import POST
from tests.simulation.scenarios.trading import TRADE, UNSENT

__all__ = ["CONSUMERS"]


def _read_is_done() -> Sequence[Patch]:
    """Offsets are committed behind what was read, whether it is done or not."""
    return [(Frontier, "offsets", lambda self: dict(self._reached))]


def _origins() -> Sequence[Patch]:
    """A process manager does not remember which inputs it has taken."""
    return [(Reactor, "see", lambda self, instance, given: None)]


def _uncommitted() -> Sequence[Patch]:
    """Events of transactions that may be aborted are routed."""
    config = consumer_group.member_config

    def careless(given: Any, group: str) -> dict[str, Any]:
        return {**config(given, group), "isolation.level": "read_uncommitted"}

    return [(consumer_group, "member_config", careless)]


def _interruption() -> Sequence[Patch]:
    """Messages are taken though their partition was not held all the while."""

    def usable(self: Any, message: Any) -> bool:
        return message.error() is None and (message.topic(), message.partition()) in self._served

    return [(GroupMember, "_usable", usable), (GroupMember, "_forget", lambda self, partitions: None)]


def _skipping() -> Sequence[Patch]:
    """A router begins at the end of what is written, not at the committed offset."""
    committed = ProcessRouter._committed_offsets

    def ends(self: Any, wanted: Any) -> Any:
        found = committed(self, wanted)
        for tp in found:
            asked = self._cluster.ask_stable_ends([(tp.topic, tp.partition)])
            tp.offset = max(tp.offset, asked[tp.topic, tp.partition].result(20.0).offset)
        return found

    return [(ProcessRouter, "_committed_offsets", ends)]


def _done_when_sent() -> Sequence[Patch]:
    """An input counts as written once it is queued."""
    send = InputProducer.send

    def hasty(self: Any, out: Any, written: Any, topic: str = "") -> None:
        send(self, out, lambda: None, topic)
        written()

    return [(InputProducer, "send", hasty)]


def _order() -> Sequence[Patch]:
    """Events of one stream are delivered side by side."""
    init = PendingDelivery.__post_init__

    def apart(self: Any) -> None:
        init(self)
        self.stream = (self.record.topic, self.record.partition, b"%d" % self.record.offset)

    return [(PendingDelivery, "__post_init__", apart)]


CONSUMERS = {
    "read is routed": Bug(_read_is_done, UNSENT),
    "origins": Bug(_origins, TRADE),
    "uncommitted is routed": Bug(_uncommitted, TRADE),
    "interrupted router": Bug(_interruption, TRADE),
    "skipping router": Bug(_skipping, TRADE),
    "routed when sent": Bug(_done_when_sent, UNSENT),
    "read is handled": Bug(_read_is_done, POST),
    "uncommitted is handled": Bug(_uncommitted, POST),
    "interrupted reaction": Bug(_interruption, POST),
    "side by side": Bug(_order, POST),
}
