"""The faults of a simulated world, drawn from a seed: kills, pauses, lost and late requests, cuts, restarts, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.faults.damage import TOPIC_KINDS, Damage
from leftfold.testing.simulation.faults.kinds import BROKEN, KINDS, REDIS, REDIS_KINDS, TWICE, Fault, draw, is_of_redis
from leftfold.testing.simulation.kafka.brokers import Broker, Fate
from leftfold.testing.simulation.kafka.sending import SENDERS
from leftfold.testing.simulation.network import Network
from leftfold.testing.simulation.scheduler import SimulatedProcess

__all__ = ["KINDS", "REDIS_KINDS", "Fault", "draw", "install"]

_PAUSES = (0.0, 0.1, 0.4)
"""How likely a coordinator is slow, by world."""


def install(world: SimulatedWorld, faults: Sequence[Fault]) -> InstalledFaults:
    """Installs the faults in a world."""
    return InstalledFaults(world, faults)


class InstalledFaults:
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
        self._requests, self._since = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._cluster.fate = self._fate
        self._cluster.pause = self._pause
        self._pauses = self._scheduler.random.choice(_PAUSES)
        self._network: Network | None = world.parts.get("network")
        if self._network is not None:
            self._network.fate = self._fate
            self._network.torn = lambda size: self._scheduler.random.randrange(size + 1)
        often = 0.25
        if any(fault.kind in TWICE for fault in faults):
            often, self._pauses = 0.9, max(_PAUSES)
        self._cluster.forgets = lambda: self._scheduler.random.random() < often
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
        role, api = process.role, REDIS if is_of_redis(api) else api
        self._requests[role, api] = count = self._requests[role, api] + 1
        self._since[role, api] = since = self._since[role, api] + self._cluster.coordinator.has_forgotten
        for fault in self._left:
            expected = since if fault.kind == "kill ender" else count
            if fault.number != expected or (fault.target, fault.at) != (role, api):
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
            case "kill ender":
                self._scheduler.call_later(fault.seconds, lambda: process.end(-9))
                return Fate("late")
            case "kill both":
                later, chance = self._scheduler.call_later, self._scheduler.random
                gap, soon = 0.1 * chance.random(), 2 * fault.seconds * chance.random()
                later(soon, lambda: process.end(-9))
                return Fate("late", handled=lambda: later(gap, lambda: self._kill_coordinator(fault.seconds)))
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
