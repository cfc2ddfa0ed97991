"""The kinds of faults, and which ones a seed draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from leftfold.testing.simulation.faults.damage import TOPIC_KINDS

__all__ = ["BROKEN", "KINDS", "REDIS", "REDIS_KINDS", "TWICE", "Fault", "draw", "is_of_redis"]

CALLS = (
    "", "", "", "poll", "consume", "produce", "flush", "begin_transaction", "send_offsets_to_transaction",
    "commit_transaction", "commit_transaction", "commit_transaction", "commit_transaction", "init_transactions",
    "commit", "seek", "committed", "close", "get_watermark_offsets", "offsets_for_times",
)  # fmt: skip
"""The calls at which a fault may occur; "" = any call."""
REQUESTS = (
    "produce", "produce", "add partitions", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "EndTxn", "EndTxn",
    "EndTxn", "init producer",
    "offset commit", "offset fetch", "list offsets", "fetch", "join", "sync", "heartbeat", "leave", "metadata",
)  # fmt: skip
REDIS = "redis"
"""The name of any request to Redis."""
_EARLY = 2.5
_LENGTHS = (0.2, 1.0, 3.0, 7.0, 8.0, 10.0, 12.0, 20.0)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: which fault. target: a role ("worker", "client" …) or a broker's number. at: the name of a call or request
            whose `number`-th occurrence it hits. after: else seconds from the start. seconds: how long it lasts.
    """

    kind: str
    target: str = ""
    at: str = ""
    number: int = 0
    after: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        when = f"call {self.number} of {self.at or 'any kind'}" if self.number else f"{self.after:.1f} s"
        how_long = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind} {self.target} at {when}{how_long}"


_Draw: TypeAlias = Callable[[random.Random, Sequence[str], int, float], Fault]
"""What draws a fault, given the roles, the number of brokers and the seconds within which it comes."""


def _length(chance: random.Random, lengths: Sequence[float] = _LENGTHS) -> float:
    return chance.choice(lengths) * (0.5 + chance.random())


def _moment(chance: random.Random, horizon: float) -> float:
    """A time, often early, while most commands are sent."""
    return chance.choice((_EARLY, horizon)) * chance.random()


def _at_call(kind: str) -> _Draw:
    def drawn(chance: random.Random, roles: Sequence[str], brokers: int, horizon: float) -> Fault:
        at = chance.choice(CALLS)
        number = 1 + int(chance.expovariate(1 / 150) if not at else chance.expovariate(1 / 6))
        return Fault(kind, chance.choice(roles), at, number, seconds=_length(chance))

    return drawn


def _at_request(kind: str) -> _Draw:
    def drawn(chance: random.Random, roles: Sequence[str], brokers: int, horizon: float) -> Fault:
        role = chance.choice(roles)
        at = REDIS if role in REDIS_ROLES and chance.random() < 0.8 else chance.choice(REQUESTS)
        number = 1 + int(chance.expovariate(1 / (60 if at == REDIS else 6)))
        return Fault(kind, role, at, number, seconds=_length(chance))

    return drawn


def _at_time(kind: str) -> _Draw:
    def drawn(chance: random.Random, roles: Sequence[str], brokers: int, horizon: float) -> Fault:
        is_of_broker = kind in ("restart broker", "slow broker")
        target = str(chance.randrange(brokers) + 1) if is_of_broker else chance.choice(roles)
        return Fault(kind, target, after=_moment(chance, horizon), seconds=_length(chance))

    return drawn


def _of_redis(kind: str) -> _Draw:
    def drawn(chance: random.Random, roles: Sequence[str], brokers: int, horizon: float) -> Fault:
        lost = chance.choice(("", "", "0.5", "2.0"))
        return Fault(kind, lost, after=_moment(chance, horizon), seconds=_length(chance))

    return drawn


def _at_nth(kind: str, role: str, at: str, mean: int, seconds: Callable[[random.Random], float]) -> _Draw:
    """A fault of a role's n-th request of a kind; n is `mean` on average."""
    return lambda chance, roles, brokers, horizon: Fault(
        kind, role, at, 1 + int(chance.expovariate(1 / mean)), seconds=seconds(chance)
    )


def _broken(kind: str) -> _Draw:
    return lambda chance, roles, brokers, horizon: Fault(kind, BROKEN[kind], after=_moment(chance, horizon))


STRAY = "stray"
"""A request that arrives long after its sender died; it occurs only in scenarios that name it."""
AT_COMMIT = "reset", "silent", "kill coordinator", "kill both"
"""A connection that breaks behind a request to end a transaction, which is sent again before the first one is handled;
an answer to such a request that never comes; a coordinator that is killed between its decision and the markers, and
started again; and, soon after it, the one who asked. Only in scenarios that name them."""
TWICE = "kill both", "kill ender"
"""Two faults in a row: that last one, and a worker that is killed in the n-th transaction since a broker forgot one, as
in that which ends it. Brokers are slower and forget more then. Only in scenarios that name them."""
UNSENT = "unsent"
"""A request that never leaves a router, which is killed some seconds later; only in scenarios that name it."""
BROKEN = {"break sender": "worker", "break outbox": "client"}
"""A fatal error of the producer of answers or commands, by kind; only in scenarios that name it."""
REDIS_ROLES = ("projector", "rebuild", "reader")
"""The roles that are clients of Redis."""
KINDS: Mapping[str, _Draw] = {
    "kill": _at_call("kill"),
    "stop": _at_call("stop"),
    "kill later": _at_time("kill later"),
    "terminate": _at_time("terminate"),
    "lost": _at_request("lost"),
    "unanswered": _at_request("unanswered"),
    "late": _at_request("late"),
    "cut to": _at_time("cut to"),
    "cut from": _at_time("cut from"),
    "cut": _at_time("cut"),
    "restart broker": _at_time("restart broker"),
    "slow broker": _at_time("slow broker"),
    "move coordinators": _at_time("move coordinators"),
    "clock": _at_time("clock"),
}
REDIS_KINDS: Mapping[str, _Draw] = {
    "restart redis": _of_redis("restart redis"),
    "stop redis": _of_redis("stop redis"),
    "wipe redis": _of_redis("wipe redis"),
}
"""The faults of Redis for an App with views; the target is how many seconds of writes are lost."""
_ALL = {
    **KINDS,
    **REDIS_KINDS,
    **{kind: _at_time(kind) for kind in TOPIC_KINDS},
    # The delay is longer than answers are remembered.
    STRAY: _at_nth(STRAY, "client", "produce", 20, lambda chance: 62.0 + chance.random() * 43.0),
    "kill ender": _at_nth("kill ender", "worker", "AddOffsetsToTxn", 2, lambda chance: 0.01 * chance.random()),
    UNSENT: _at_nth(UNSENT, "router", "produce", 4, partial(_length, lengths=(0.2, 1.0, 3.0))),
    **{
        kind: _at_nth(kind, "worker", "EndTxn", 6, partial(_length, lengths=(0.02, 0.05, 0.1, 0.3)))
        for kind in AT_COMMIT
    },
    **{kind: _broken(kind) for kind in BROKEN},
}
_WEIGHTS = {
    "kill": 4, "terminate": 2, "stop": 2, "lost": 2, "unanswered": 3, "late": 3, "restart broker": 2,
    "move coordinators": 2, "restart redis": 2, "break sender": 6, "break outbox": 6,
}  # fmt: skip
"""How often a kind is drawn, where not once."""


def draw(
    seed: int, roles: Sequence[str], brokers: int, horizon: float, kinds: Sequence[str] = tuple(KINDS)
) -> list[Fault]:
    """The faults of a seed: none to six of them."""
    chance = random.Random(seed * 7919 + 13)  # not for secrets
    weights = [_WEIGHTS.get(kind, 1) for kind in kinds]
    chosen = chance.choices(kinds, weights, k=chance.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6)))
    return [_ALL[kind](chance, roles, brokers, horizon) for kind in chosen]


def is_of_redis(api: str) -> bool:
    """Whether a request goes to Redis."""
    return api.startswith(f"{REDIS} ")
