"""The faults of a simulated world, drawn from a seed: kills, pauses, lost and late requests, cuts, restarts, clocks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.faults.damage import TOPIC_KINDS, Damage
from leftfold.testing.simulation.kafka.brokers import Broker, Fate
from leftfold.testing.simulation.kafka.sending import SENDERS
from leftfold.testing.simulation.network import Network
from leftfold.testing.simulation.scheduler import SimulatedProcess

__all__ = ["KINDS", "REDIS_KINDS", "Fault", "draw", "install"]

CALLS = (
    "", "", "", "poll", "consume", "produce", "flush", "begin_transaction", "send_offsets_to_transaction",
    "commit_transaction", "commit_transaction", "commit_transaction", "commit_transaction", "init_transactions",
    "commit", "seek", "committed", "close", "get_watermark_offsets",
)  # fmt: skip
"""The calls at which a fault may occur; "" = any call."""
REQUESTS = (
    "produce", "produce", "add partitions", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "EndTxn", "EndTxn",
    "EndTxn", "init producer",
    "offset commit", "offset fetch", "list offsets", "fetch", "join", "sync", "heartbeat", "leave", "metadata",
)  # fmt: skip
REDIS = "redis"
"""The name of any request to Redis."""
_OF_REDIS = f"{REDIS} "
_EARLY = 2.5
_PAUSES = (0.0, 0.1, 0.4)
"""How likely a coordinator is slow, by world."""
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
AT_COMMIT = "reset", "silent", "kill coordinator"
"""A connection that breaks behind a request to end a transaction, which is sent again before the first one is handled;
an answer to such a request that never comes; a coordinator that is killed between its decision and the markers, and
started again. Only in scenarios that name them."""
UNSENT = "unsent"
"""A request that never leaves a router, which is killed some seconds later; only in scenarios that name it."""
BROKEN = {"break sender": "worker", "break outbox": "client"}
"""A fatal error of the producer of answers or commands, by kind; only in scenarios that name it."""
REDIS_ROLES = ("tail", "rebuild", "reader")
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


def install(world: SimulatedWorld, faults: Sequence[Fault]) -> _Installed:
    """Installs the faults in a world."""
    return _Installed(world, faults)


class _Installed:
    """The faults of a running world.

    Attributes:
        until: when the last fault that occurred is over. loses_until: when Redis loses writes for the last time.
    """

    def __init__(self, world: SimulatedWorld, faults: Sequence[Fault]) -> None:
        self._world, self._scheduler, self._cluster = world, world.scheduler, world.cluster
        self.struck: list[tuple[float, Fault]] = []
        self.until = 0.0
        lossy = [f for f in faults if f.kind == "wipe redis" or (f.kind == "restart redis" and f.target)]
        self.loses_until = max((f.after + f.seconds for f in lossy), default=-1.0)
        self.damage = Damage(world)
        self._left = [fault for fault in faults if fault.number]
        self._counts = Counter[tuple[str, str]]()
        self._requests = Counter[tuple[str, str]]()
        self._cluster.fate = self._fate
        self._cluster.pause = self._pause
        self._pauses = self._scheduler.random.choice(_PAUSES)
        self._network: Network | None = world.parts.get("network")
        if self._network is not None:
            self._network.fate = self._fate
            self._network.torn = lambda size: self._scheduler.random.randrange(size + 1)
        self._cluster.forgets = lambda: self._scheduler.random.random() < 0.25
        for fault in faults:
            if not fault.number:
                self._scheduler.call_later(fault.after, lambda f=fault: self._strike(f))  # type: ignore[misc]

    def watch(self, process: SimulatedProcess) -> None:
        """Adds the faults at the calls of a process."""
        if any(fault.target == process.role and fault.kind in ("kill", "stop") for fault in self._left):
            process.strike = self._called

    def stop(self) -> None:
        """Removes all faults except those of a later time; topics are not damaged any more."""
        self._left.clear()
        self.damage.is_over = True

    def _note(self, fault: Fault, seconds: float = 0.0) -> None:
        now = self._scheduler.now
        self.struck.append((now, fault))
        self.until = max(self.until, now + seconds)

    def _called(self, process: SimulatedProcess, what: str) -> None:
        role = process.role
        for at in (what, "") if self._left else ():
            self._counts[role, at] = count = self._counts[role, at] + 1
            for fault in self._left:
                if fault.number == count and fault.kind in ("kill", "stop") and (fault.target, fault.at) == (role, at):
                    self._left.remove(fault)
                    self._strike_process(process, fault)
                    break

    def _strike_process(self, process: SimulatedProcess, fault: Fault) -> None:
        if fault.kind == "stop":
            self._note(fault, fault.seconds)
            self._scheduler.call_later(fault.seconds, process.go_on)
            process.stop()
            self._scheduler.wait(0.0)  # returns when the process continues
        else:
            self._note(fault)
            process.end(-9)

    def _fate(self, api: str, process: SimulatedProcess) -> Fate | None:
        if not self._left:
            return None
        role, api = process.role, REDIS if api.startswith(_OF_REDIS) else api
        self._requests[role, api] = count = self._requests[role, api] + 1
        for fault in self._left:
            if fault.number != count or (fault.target, fault.at) != (role, api):
                continue
            if (fate := self._fate_by(fault, process)) is not None:
                self._left.remove(fault)
                self._note(fault, 0.0 if fault.kind in ("lost", "unanswered") else fault.seconds)
                return fate
        return None

    def _fate_by(self, fault: Fault, process: SimulatedProcess) -> Fate | None:
        """What a fault does to a request; None = it is none of a request."""
        match fault.kind:
            case "lost":
                return Fate("lost")
            case "unanswered":
                return Fate("unanswered")
            case "late":
                return Fate("late", fault.seconds)
            case "stray":
                self._scheduler.call_later(0.0, lambda: process.end(-9))
                return Fate("late", fault.seconds)
            case "unsent":
                self._scheduler.call_later(fault.seconds, lambda: process.end(-9))
                return Fate("held")
            case "reset":
                return Fate("reset", fault.seconds)
            case "silent":
                return Fate("silent")
            case "kill coordinator":
                return Fate("late", handled=lambda: self._kill_coordinator(fault.seconds))
        return None

    def _kill_coordinator(self, seconds: float) -> None:
        """Kills a broker that has decided a transaction whose outcome has not reached all partitions."""
        cluster = self._cluster
        deciding = {key for key in cluster.known_homes() if key[0] == "transaction" and cluster.is_deciding(key[1])}
        broker = next((cluster.home(key) for key in sorted(deciding)), None)
        if broker is not None and broker.is_up:
            cluster.kill(broker)
            self._scheduler.call_later(seconds, lambda: cluster.start(broker))

    def _pause(self) -> float:
        """Seconds that a coordinator takes to reach a partition: mostly 0, sometimes up to half a second."""
        chance = self._scheduler.random
        return chance.random() * 0.5 if chance.random() < self._pauses else 0.0

    def _strike(self, fault: Fault) -> None:
        cluster, later = self._cluster, self._scheduler.call_later
        if fault.kind in REDIS_KINDS:
            self._strike_redis(fault)
        elif fault.kind in TOPIC_KINDS:
            self._note(fault)
            self.damage.strike(fault.kind)
        elif fault.kind in ("restart broker", "slow broker"):
            broker = cluster.brokers[int(fault.target) - 1]
            if not broker.is_up:
                return
            self._note(fault, fault.seconds)
            if fault.kind == "slow broker":
                broker.slow_until = self._scheduler.now + fault.seconds
            else:
                cluster.kill(broker)
                later(fault.seconds, lambda: cluster.start(broker))
        elif fault.kind == "move coordinators":
            self._note(fault)
            for key in cluster.known_homes():
                if key[0] in ("group", "transaction") and self._scheduler.random.random() < 0.7:
                    cluster.move(key)
        else:
            for process in self._targets(fault):
                self._strike_one(process, fault)

    def _strike_redis(self, fault: Fault) -> None:
        """Ends the Redis server for a while, stops it, or empties it; a restart may lose recent writes."""
        host = next(iter(self._network.hosts.values())) if self._network is not None else None
        if host is None:
            return
        server: Any = host.service
        if not host.is_up or host.is_stopped:
            return
        self._note(fault, fault.seconds)
        if fault.kind == "stop redis":
            host.is_stopped = True
            self._scheduler.call_later(fault.seconds, lambda: setattr(host, "is_stopped", False))
            return

        def start() -> None:
            if fault.kind == "wipe redis":
                server.wipe()
            else:
                server.restart(lost_seconds=fault.seconds + float(fault.target) if fault.target else 0.0)
            host.start()

        host.kill()
        self._scheduler.call_later(fault.seconds, start)

    def _strike_one(self, process: SimulatedProcess, fault: Fault) -> None:
        if fault.kind == "kill later":
            self._note(fault)
            process.end(-9)
        elif fault.kind == "terminate":
            if process.terminate is not None:
                self._note(fault)
                process.terminate()
        elif fault.kind in BROKEN:
            self._note(fault)
            for sender in self._world.parts.get(SENDERS, ()):
                if sender.process is process:
                    sender.break_down()
        elif fault.kind == "clock":
            self._note(fault, fault.seconds)
            process.skew += (jump := self._scheduler.random.choice((-3600.0, -5.0, 5.0, 3600.0)))
            self._scheduler.call_later(fault.seconds, lambda: _turn_back(process, jump))
        else:
            self._note(fault, fault.seconds)
            self._cut(process, fault)

    def _cut(self, process: SimulatedProcess, fault: Fault) -> None:
        directions = {"cut to": ("to",), "cut from": ("from",), "cut": ("to", "from")}[fault.kind]
        brokers: list[Broker] = self._cluster.brokers
        chosen = brokers if self._scheduler.random.random() < 0.5 else [self._scheduler.random.choice(brokers)]
        links = {(process.name, broker.number, direction) for broker in chosen for direction in directions}
        self._cluster.cut |= links
        self._scheduler.call_later(fault.seconds, lambda: self._cluster.cut.difference_update(links))
        network = self._network
        if network is not None and self._scheduler.random.random() < 0.7:
            ways = {(process.name, host.name, way) for host in network.hosts.values() for way in directions}
            network.cut |= ways
            self._scheduler.call_later(fault.seconds, lambda: network.cut.difference_update(ways))

    def _targets(self, fault: Fault) -> list[SimulatedProcess]:
        running = [p for p in self._world.processes if p.role == fault.target and p.code is None]
        return [self._scheduler.random.choice(running)] if running else []


def _turn_back(process: SimulatedProcess, jump: float) -> None:
    process.skew -= jump
