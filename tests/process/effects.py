"""What became of a trade: every step that was taken, and whether any was taken twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from leftfold import App, Event
from leftfold.engine.processing.process_wire import ACK, DUE, NACK
from leftfold.engine.processing.recovery import ProcessRefold
from leftfold.engine.processing.stream_state import MARK, MemoryStates
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import app as trade
from tests.process.trading import committed

__all__ = ["folded", "happened", "inputs", "routed", "sent", "states", "twice"]


def happened(settings: KafkaSettings, app: App = trade) -> Counter[object]:
    """How often each event was written, in all services."""
    found: Counter[object] = Counter()
    for decider in app.deciders:
        codec: MessageCodec[Event] = MessageCodec(decider.events)
        for record in committed(settings, names.events(decider.name)):
            found[codec.wanted(header(record.headers, "ce_type"), record.value)] += 1
    return found


def sent(settings: KafkaSettings, app: App = trade) -> Counter[bytes]:
    """How often each command of the process and each answer to one was written, by id."""
    topics = [names.commands(decider.name) for decider in app.deciders]
    records = [record for topic in topics for record in committed(settings, topic)]
    asked = [record for record in records if header(record.headers, "reply_key")]
    answers = [r for r in inputs(settings) if header(r.headers, "ce_type") in (ACK, NACK)]
    return Counter(header(record.headers, "ce_id") for record in [*asked, *answers])


def inputs(settings: KafkaSettings) -> list[RawRecord]:
    """Everything that the process was given, but barriers."""
    return [record for record in committed(settings, "checkout.commands") if record.key != MARK]


def routed(settings: KafkaSettings) -> Counter[bytes]:
    """How often each event was routed, by the id of the input."""
    ours = (ACK, NACK, DUE)
    found = [record for record in inputs(settings) if header(record.headers, "ce_type") not in ours]
    return Counter(header(record.headers, "ce_id") for record in found)


def twice(counts: Counter[bytes] | Counter[object]) -> dict[object, int]:
    """What there is more than once."""
    return {what: count for what, count in counts.items() if count > 1}


def states(settings: KafkaSettings, app: App = trade) -> dict[str, bytes]:
    """The states that workers have written, by key."""
    records = committed(settings, names.state("checkout", app.process("checkout").version))
    return {(r.key or b"").decode(): r.value or b"" for r in records if r.key != MARK}


def folded(settings: KafkaSettings, app: App = trade) -> dict[str, bytes]:
    """The states that come of folding all inputs."""
    refolds = [ProcessRefold(app.process("checkout"), MemoryStates()) for _ in range(app.partitions)]
    for letter in committed(settings, names.dead("checkout")):
        refolds[letter.partition].skip(letter)
    for record in committed(settings, "checkout.commands"):
        refolds[record.partition].add(record)
    return dict(item for refold in refolds for item in _written(refold))


def _written(refold: ProcessRefold) -> Iterable[tuple[str, bytes]]:
    while refold.changed:
        yield from refold.take(1000)
