"""The deployment of an App in a simulated world: its processes under a supervisor, and clients with drawn commands."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from leftfold.errors import ConfigurationError, DomainError, Fenced, InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.administration import topics
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.reactions.runner import ReactionRunner
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model.app import App
from leftfold.model.messages import Command
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.faults.damage import Operator
from leftfold.testing.simulation.faults.injection import KINDS, REDIS_KINDS, Fault, draw, install
from leftfold.testing.simulation.stand_ins.threads import SimulatedEvent
from leftfold.testing.simulation.witness import Check, WitnessedCommand

__all__ = ["FAULT_SECONDS", "Deployment", "Scenario", "has_projectors"]

SETTINGS = KafkaSettings(bootstrap_servers="simulated:9092")
AGAIN_SECONDS = 0.5
FAULT_SECONDS = 15.0
"""The virtual seconds within which faults occur."""
DUE_SECONDS = 60.0
"""Timers that are due within so many virtual seconds after the faults are waited for."""
_PATIENCE = 10.0
_GIVES_UP = 0.3
_CONSUMERS = 2
"""The number of routers of each process, and of consumers of each reaction."""


Load: TypeAlias = Callable[[random.Random], Sequence[Sequence[Command]]]
"""Draws the commands of each client, in order."""


def has_projectors(app: App) -> bool:
    """Whether projectors fold any of the App's views."""
    return any(view.folded for view in app.views)


@dataclass(frozen=True)
class Scenario:
    """A scenario to simulate.

    Args:
        load: draws the commands of each client. workers: of each decider. kinds: of faults that may occur; () = all.
        horizon: virtual seconds within which they occur. same_ids: see `simulate`. check: the domain's guarantees.
        shares_ids: whether the n-th commands of all clients have one id, by mistake.
        newer: the App of a rolling deploy, whose folds of the same views differ; they are rebuilt, held and promoted.
        is_operated: whether an operator acts on a worker that refuses a damaged topic; without one it must not refuse.
        pace: mean seconds that a client waits before a command. make: makes the clients of a worker.
        upgraded: the App of the workers that restore in the end, with later versions of the same deciders.
        attempts: of each rebuild's tasks, which run side by side; the results of the first one count.
        is_forgetful: whether a killed broker may forget to send partitions the outcome of a transaction.
        is_burying: whether dead letters of processes and reactions are as they should be.
    """

    app: App
    load: Load
    workers: int = 2
    brokers: int = 2
    kinds: tuple[str, ...] = ()
    horizon: float = FAULT_SECONDS
    same_ids: bool = True
    shares_ids: bool = False
    check: Check | None = None
    newer: App | None = None
    is_operated: bool = False
    pace: float = 0.0
    make: Callable[..., KafkaClientSupplier] = KafkaClientSupplier
    attempts: int = 1
    upgraded: App | None = None
    is_forgetful: bool = True
    is_burying: bool = False

    def faults(self, seed: int) -> list[Fault]:
        """The faults of a seed."""
        roles: tuple[str, ...] = ("worker", "client", "worker")
        kinds = tuple(KINDS)
        if self.app.processes:
            roles = (*roles, "router", "router")
        if self.app.reactions:
            roles = (*roles, "reaction", "reaction")
        if has_projectors(self.app):
            roles, kinds = (*roles, "projector", "projector", "rebuild", "reader"), (*kinds, *REDIS_KINDS)
        return draw(seed, roles, self.brokers, self.horizon, self.kinds or kinds)


class Deployment:
    """The processes of a scenario's App.

    Attributes:
        trace: reports of workers and exits of processes: (seconds, process, what, details).
        due: the time, in seconds since 1970, until which timers must have fired; after `restart` it is fixed.
        broken: errors that no fault explains. ended: processes that ended by themselves, each with its role.
    """

    def __init__(self, world: SimulatedWorld, scenario: Scenario, faults: Sequence[Fault]) -> None:
        self._world, self._scenario, self.app = world, scenario, scenario.app
        self._stops: list[SimulatedEvent] = []
        self.is_stopping = self.is_over = False
        self.due = math.inf
        self._rounds = self._over = 0
        self.trace: list[tuple[float, str, str, Any]] = []
        self.broken: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self._successors: dict[str, Worker] = {}
        self.sent: list[WitnessedCommand] = []
        loads = scenario.load(random.Random(world.seed))  # not for secrets
        self._loads = [[(self._sent(c, number), c) for number, c in enumerate(commands)] for commands in loads]
        self._waiting = list(self.sent)
        self._is_ready = False
        self.projections: Projections | None = None
        if has_projectors(self.app):
            from leftfold.testing.simulation.projections import Projections

            self.projections = Projections(self, world, SETTINGS, newer=scenario.newer, attempts=scenario.attempts)
        self.faults = install(world, faults)
        self._operator = Operator(self, world) if scenario.is_operated else None

    def begin(self) -> None:
        """Creates the topics, then starts every process."""
        self.keep("setup", "setup", self._set_up)

    @property
    def is_answered(self) -> bool:
        """Whether every client has all its answers, and the deploy is done."""
        waiting = self._waiting
        while waiting and waiting[-1].answer is not None:
            waiting.pop()
        return not waiting and self._is_ready and (self.projections is None or self.projections.is_deployed)

    def end(self) -> None:
        """Stops the workers in order."""
        self.is_stopping = True
        for stop in self._stops:
            stop.set()

    def restart(self) -> None:
        """Starts one more worker for each decider, which restores the states that the others wrote."""
        self.is_stopping = False
        self.due = self._world.cluster.time() + DUE_SECONDS
        self._rounds += 1
        self.app = self._scenario.upgraded or self.app
        self._stops.clear()
        for name in self._decided:
            self.keep(f"{name} successor", "successor", partial(self._work, name, last=True))
        self._keep_consumers(1, " successor", "successor")
        if self.projections is not None:
            self.projections.restart()

    @property
    def is_serving(self) -> bool:
        """Whether the workers of `restart` serve every partition."""
        found = self._successors
        if len(found) < len(self._decided):
            return False
        every = frozenset(range(self.app.partitions))
        return all(worker.served == every for worker in found.values())

    def audit(self) -> None:
        """Starts the auditor of the rows, once all commands are decided."""
        if self.projections is not None:
            self.projections.audit()

    @property
    def is_audited(self) -> bool:
        """Whether the rows of every view have been read."""
        return self.projections is None or self.projections.is_audited

    @property
    def is_ended(self) -> bool:
        """Whether no process runs any more."""
        # One that has ended never runs again, so that each is looked at once.
        processes = self._world.processes
        while self._over < len(processes):
            process = processes[self._over]
            if process.code is None and not all(task.is_done for task in process.tasks):
                return False
            self._over += 1
        return True

    def _sent(self, command: Command, number: int) -> WitnessedCommand:
        spec = command.__leftfold__
        id_ = f"c{number if self._scenario.shares_ids else len(self.sent)}"
        one = WitnessedCommand([id_], str(getattr(command, spec.key)), spec.category, repr(command))
        self.sent.append(one)
        return one

    def _set_up(self) -> None:
        topics.ensure(self.app, SETTINGS)
        if self._is_ready:
            return
        self._is_ready = True
        for name in self._decided:
            for number in range(self._scenario.workers):
                self.keep(f"{name} worker {number + 1}", "worker", partial(self._work, name))
        self._keep_consumers(_CONSUMERS)
        for number, load in enumerate(self._loads):
            self.keep(f"client {number + 1}", "client", lambda mine=load: self._send(mine))  # type: ignore[misc]
        if self.projections is not None:
            self.projections.begin()

    @property
    def _decided(self) -> list[str]:
        """The deciders and process managers, for each of which workers run."""
        return [*(decider.name for decider in self.app.deciders), *(process.name for process in self.app.processes)]

    def _keep_consumers(self, count: int, suffix: str = "", role: str = "") -> None:
        """Starts the routers of process managers and the consumers of reactions."""
        for number in range(count):
            which = suffix or f" {number + 1}"
            for process in self.app.processes:
                self.keep(f"{process.name} router{which}", role or "router", partial(self._route, process.name))
            for reaction in self.app.reactions:
                self.keep(f"{reaction.name} reaction{which}", role or "reaction", partial(self._react, reaction.name))

    def keep(self, name: str, role: str, function: Callable[[], None]) -> None:
        """Runs a process, and restarts it after a kill or an error that a restart may resolve."""
        world = self._world

        def run() -> None:
            process = world.process
            self.faults.watch(process)
            try:
                function()
            except (Fenced, InfrastructureError) as error:
                self.note("ended", error)
                self.ended.append((role, f"{name} ended though nothing struck: {error}"))
                process.end(75)
            except ConfigurationError as error:
                if self._operator is None:
                    self.broken.append(f"refused: {name}: {error}")
                self.note("refused to work", error)
                process.end(error.exit_code)
            except Exception as error:  # noqa: BLE001  # like a process that ends with a traceback and is restarted
                self.note("broke", repr(error))
                self.broken.append(f"broke: {name}: {error!r}")
                process.end(1)

        task, current = world.start(name, run, role), self._rounds

        def ended() -> None:
            code = task.process.code
            if self.is_over:
                return
            self.broken += [f"broke: {name}/{one.name}: {one.error!r}" for one in task.process.tasks if one.error]
            self.trace.append((world.scheduler.now, name, "exit", code))
            if self._operator is not None and self._operator.takes(role, code, again):
                return
            if not self.is_stopping and code is not None:
                world.scheduler.call_later(AGAIN_SECONDS, again)

        def again() -> None:
            if current == self._rounds:
                self.keep(name, role, function)

        task.process.at_end.append(ended)

    def note(self, what: str, details: Any) -> None:
        """Adds a report of the running process to the trace."""
        if isinstance(details, BaseException):
            details = str(details)  # its traceback would hold the whole world in the result of the schedule
        self.trace.append((self._world.scheduler.now, self._world.process.name, what, details))

    def _work(self, category: str, *, last: bool = False) -> None:
        with self.stopped() as stop:
            if last and self._scenario.upgraded:
                topics.ensure(self.app, SETTINGS)
            worker = Worker(self.app, category, self._scenario.make(SETTINGS), stop=stop, report=self.note)
            if last:
                self._successors[category] = worker
            worker.run()

    def _route(self, process: str) -> None:
        with self.stopped() as stop:
            ProcessRouter(self.app, process, SETTINGS, stop=stop, report=self.note).run()

    def _react(self, reaction: str) -> None:
        with self.stopped() as stop:
            ReactionRunner(self.app, reaction, SETTINGS, stop=stop, report=self.note).run()

    @contextmanager
    def stopped(self) -> Iterator[Any]:
        """An event that is set when the running process should end in order; it is restarted unless the run stops."""
        process, stop = self._world.process, SimulatedEvent()
        process.terminate = stop.set
        self._stops.append(stop)
        if self.is_stopping:
            stop.set()
        yield stop
        if not self.is_stopping:
            process.end(0)

    def _send(self, load: Sequence[tuple[WitnessedCommand, Command]]) -> None:
        """Sends one command after another, each until its outcome is known, or until the client gives up."""
        chance = random.Random(self._world.seed)  # nothing secret
        with KafkaClient(self.app.name, SETTINGS) as client:
            for one, command in load:
                if one.answer is not None:
                    continue
                if chance.random() < 0.3:
                    self._world.scheduler.wait(chance.random())
                if self._scenario.pace:
                    self._world.scheduler.wait(chance.random() * 2 * self._scenario.pace)
                while True:
                    try:
                        one.answer = client.send(command, id=one.id, timeout=_PATIENCE)
                    except (OutcomeUnknown, InfrastructureError) as unknown:
                        if isinstance(unknown, OutcomeUnknown) and chance.random() < _GIVES_UP:
                            one.answer = unknown
                            self.note("gives up", f"{one.ids[0]}: {unknown}")
                            break
                        if not self._scenario.same_ids:
                            one.ids.append(f"{one.ids[0]}.{len(one.ids)}")
                        self.note("asks again", f"{one.ids[0]}: {unknown}")
                        self._world.scheduler.wait(AGAIN_SECONDS)
                        continue
                    except (DomainError, LeftfoldError) as error:
                        one.answer = error
                        self.note("refused", error)
                    break
