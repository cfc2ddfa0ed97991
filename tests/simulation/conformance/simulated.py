"""A bench in a simulated world, and the run of a script on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.kafka.admin import AdminClient
from leftfold.testing.simulation.kafka.brokers import Fate
from leftfold.testing.simulation.kafka.consumer import Consumer
from leftfold.testing.simulation.kafka.producer import Producer
from leftfold.testing.simulation.scheduler import SimulatedProcess
from tests.simulation.conformance.bench import SECONDS, Bench, Deed, Outcome, Script, Step
from tests.simulation.conformance.settings import consumer_config, producer_config

__all__ = ["simulate"]

_KINDS: dict[Deed, Any] = {"hold": "held", "lose": "held", "silence": "silent", "repeat": "repeated"}
_SECONDS_OF_SCRIPT = 3600.0


def simulate(script: Script, seed: int) -> Outcome:
    """Runs a script in a world of its own."""
    world = SimulatedWorld(seed)
    with world.activated():
        bench = _Simulated(world)
        task = world.start("script", lambda: script(bench))
        try:
            world.run(lambda: task.is_done, _SECONDS_OF_SCRIPT)
        finally:
            world.close()
    if task.error is not None:
        raise task.error
    assert task.is_done
    return bench.outcome


class _Strike:
    def __init__(self, step: Step, deed: Deed, times: int) -> None:
        self.step, self.deed, self.times = step, deed, times
        self.count = self.handled = 0
        self.held: list[Callable[[], None]] = []

    def fate(self) -> Fate:
        """What becomes of the next request."""
        self.times -= 1
        self.count += 1
        return Fate(_KINDS[self.deed], held=self.held if self.deed == "hold" else [], handled=self._note)

    def release(self) -> None:
        """Lets go."""
        self.times = 0
        while self.held:
            self.held.pop(0)()

    def _note(self) -> None:
        self.handled += 1


class _Simulated(Bench):
    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self._world, self._far = world, SimulatedProcess("far", world.scheduler)
        self._strikes: list[_Strike] = []
        world.cluster.fate = self._fate

    def producer(self, *, far: bool = False, **config: Any) -> Any:
        producer = Producer(producer_config("simulated", config))
        if far:
            producer._sender.process = self._far
        return producer

    def consumer(self, *, far: bool = False, **config: Any) -> Any:
        consumer = Consumer(consumer_config("simulated", self.unique("group"), config))
        if far:
            consumer._reader.process = self._far
        return consumer

    def admin(self) -> Any:
        return AdminClient({"bootstrap.servers": "simulated"})

    def strike(self, step: Step, deed: Deed, *, times: int = 1) -> _Strike:
        strike = _Strike(step, deed, times)
        self._strikes.append(strike)
        return strike

    def wait(self, condition: Callable[[], Any], awaited: str) -> None:
        scheduler = self._world.scheduler
        deadline = scheduler.now + SECONDS
        while not condition():
            assert scheduler.now < deadline, f"waited in vain for {awaited}"
            scheduler.wait(0.01)

    def clock(self) -> float:
        return self._world.scheduler.now

    def clean(self, topic: str, end: int) -> None:
        self._world.cluster.topics[topic].partitions[0].compact()

    def restart(self) -> None:
        cluster, scheduler = self._world.cluster, self._world.scheduler
        for broker in cluster.brokers:
            cluster.kill(broker)
        scheduler.wait(1.0)
        for broker in cluster.brokers:
            cluster.start(broker)

    def unique(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def _fate(self, api: str, process: SimulatedProcess) -> Fate | None:
        if process is not self._far:
            return None
        found = next((s for s in self._strikes if s.step == api and s.times > 0), None)
        return None if found is None else found.fate()
