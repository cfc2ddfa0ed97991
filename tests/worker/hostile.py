"""Records that no worker can decide, each beside a reason that its dead letter must name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leftfold.engine.processing.command_wire import command_headers
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.messages import Command
from leftfold.ports.message_codec import MessageCodec
from tests.waiting import WAIT_SECONDS
from tests.worker.bank import Bank
from tests.worker.broker import Broker

__all__ = ["ACCOUNT", "Letter", "good", "hostile", "post"]

ACCOUNT = "account"
TIME = b"2017-01-01T00:00:00Z"
Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Letter:
    """A record for the commands topic; `reason` is empty when it is a command that will be accepted."""

    name: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    reason: str = ""

    def headed(self, **headers: bytes | None) -> Letter:
        """With other headers of these names."""
        kept = [header for header in self.headers if header[0] not in headers]
        return replace(self, headers=[*kept, *headers.items()])

    def without(self, header: str) -> Letter:
        """Without this header."""
        return replace(self, headers=[one for one in self.headers if one[0] != header])


def good(bank: Bank, name: str, command: Command, reply_to: bytes = b"") -> Letter:
    """A command as a client writes it."""
    codec = MessageCodec(bank.decider.commands)
    key = str(command.model_dump()["account"]).encode()
    headers = command_headers(
        command, id=name, source=bank.name, at=TIME, type_=codec.types[type(command)], reply_to=reply_to
    )
    return Letter(name, partition_of(key, bank.app.partitions), key, codec.encode(command), headers)


def hostile(bank: Bank, reply_to: bytes) -> list[Letter]:
    """One record of each kind."""
    return [
        replace(change(good(bank, name, bank.deposit(ACCOUNT), reply_to)), reason=reason)
        for name, reason, change in _CHANGES
    ] + [
        replace(good(bank, "large event", bank.swell(ACCOUNT, "event", 1_100_000), reply_to), reason="at most"),
        replace(good(bank, "large state", bank.swell(ACCOUNT, "state", 1_100_000), reply_to), reason="state would"),
    ]


def post(broker: Broker, bank: Bank, letters: Iterable[Letter], *, apart: bool = False) -> None:
    """Writes records as they are, each marked with its case, and in a batch of its own if they are to be `apart`."""
    alone: dict[str, int] = {"linger_ms": 0, "batch_size": 1} if apart else {}
    producer = broker.producer(message_max_bytes=2_000_000, queue_buffering_max_messages=100_000, **alone)
    for one in letters:
        headers: Any = [*one.headers, ("case", one.name.encode())]
        producer.produce(names.commands(bank.name), one.value, one.key, one.partition, headers=headers)
    assert producer.flush(WAIT_SECONDS) == 0


def _type(suffix: str) -> Callable[[Letter], Letter]:
    """A change of the wire type, below the category."""

    def change(letter: Letter) -> Letter:
        category = dict(letter.headers)["ce_type"] or b""
        return letter.headed(ce_type=category.split(b".")[0] + suffix.encode())

    return change


def _elsewhere(letter: Letter) -> Letter:
    """A key that is at home in another partition."""
    key = next(f"a{n}" for n in range(99) if partition_of(f"a{n}".encode(), 4) != letter.partition)
    value = b'{"account":"%b","amount":1}' % key.encode()
    return replace(letter, key=key.encode(), value=value).headed(ce_subject=key.encode())


_CHANGES: list[tuple[str, str, Callable[[Letter], Letter]]] = [
    ("broken json", "Deposit", lambda x: replace(x, value=b"{")),
    ("no json", "Deposit", lambda x: replace(x, value=b"\xff\x00")),
    ("deep json", "Deposit", lambda x: replace(x, value=b"[" * 100_000)),
    ("null value", "Deposit", lambda x: replace(x, value=None)),
    ("a field too many", "Deposit", lambda x: replace(x, value=b'{"account":"account","amount":1,"x":1}')),
    ("a huge number", "Deposit", lambda x: replace(x, value=b'{"account":"account","amount":' + b"9" * 5000 + b"}")),
    ("unknown type", "unknown type", _type(".Nonsense.v1")),
    ("newer version", "version 2", _type(".Deposit.v2")),
    ("no type", "ce_type", lambda x: x.without("ce_type")),
    ("null type", "ce_type", lambda x: x.headed(ce_type=None)),
    ("no id", "ce_id", lambda x: x.without("ce_id")),
    ("null id", "", lambda x: x.headed(ce_id=None)),
    ("empty id", "ce_id", lambda x: x.headed(ce_id=b"")),
    ("long id", "bytes", lambda x: x.headed(ce_id=b"i" * 300_000)),
    ("id of no characters", "unreadable", lambda x: x.headed(ce_id=b"\xff")),
    ("no time", "ce_time", lambda x: x.without("ce_time")),
    ("bad time", "unreadable", lambda x: x.headed(ce_time=b"yesterday")),
    ("time without zone", "time zone", lambda x: x.headed(ce_time=b"2017-01-01T00:00:00")),
    ("bad expected version", "unreadable", lambda x: x.headed(expected_version=b"many")),
    ("bad origin", "unreadable", lambda x: x.headed(origin=b"here")),
    ("null origin", "", lambda x: x.headed(origin=None)),
    ("long correlation", "bytes", lambda x: x.headed(ce_correlationid=b"c" * 900_000)),
    ("correlation of no characters", "unreadable", lambda x: x.headed(ce_correlationid=b"\xff")),
    ("principal of no characters", "unreadable", lambda x: x.headed(ce_authid=b"\xff")),
    ("trace of no characters", "unreadable", lambda x: x.headed(traceparent=b"\xff")),
    ("other subject", "subject", lambda x: x.headed(ce_subject=b"another account")),
    ("null key", "key", lambda x: replace(x, key=None)),
    ("empty key", "key", lambda x: replace(x, key=b"")),
    ("reserved key", "reserved", lambda x: replace(x, key=b"@")),
    ("key of no characters", "unreadable", lambda x: replace(x, key=b"\xff")),
    ("other key", "account", lambda x: replace(x, key=b"account-2")),
    ("huge key", "", lambda x: replace(x, key=b"k" * 700_000)),
    ("large and broken", "Deposit", lambda x: replace(x, value=b"{" * 1_000_000)),
    ("misrouted", "belongs to partition", _elsewhere),
]
