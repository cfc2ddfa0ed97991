"""Runs an App under seeded schedules, checks each, and shrinks a failing one to the fewest faults."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from leftfold.errors import ConfigurationError
from leftfold.kafka import reachability as reach
from leftfold.model.app import App
from leftfold.model.messages import Command, Event
from leftfold.model.reaction import Acts, Delivery, check_acts
from leftfold.testing.simulation.deployment import FAULT_SECONDS, Deployment, Load, Scenario, has_projectors
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.faults.injection import Fault
from leftfold.testing.simulation.load import drawn_load
from leftfold.testing.simulation.scheduler import Stuck
from leftfold.testing.simulation.takeover import PACKAGES, taken_over
from leftfold.testing.simulation.witness import Check, dead_letters, is_undecided, violations

__all__ = ["Report", "Scenario", "ScheduleResult", "run", "scheduled", "shrink", "simulate"]

LIVENESS_SECONDS = 120.0
_SETTLING_SECONDS = 0.1
_COMMANDS = 8
_DRAWS = 100
_WIDTH = 200
"""The width of a line of a trace in characters."""
_REAL_NETWORK: list[tuple[Any, Any]] = [
    (reach.check_reachable, lambda settings: None),
    (reach.unreachable_reason, lambda settings, seconds=1.0: ""),
]


@dataclass(frozen=True)
class ScheduleResult:
    """The result of one schedule; `wrong` is empty when every guarantee held."""

    seed: int
    faults: tuple[Fault, ...]
    wrong: tuple[str, ...]
    trace: tuple[tuple[float, str, str, Any], ...]
    seconds: float
    events: int

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {'; '.join(self.wrong) or 'well'}"]
        lines += [f"  fault: {fault}" for fault in self.faults]
        for (name, what, details), found in groupby(self.trace, key=_line):
            times = [at for at, *_ in found]
            often = f" ({len(times)} times until {times[-1]:.3f})" if len(times) > 1 else ""
            lines.append(f"  {times[0]:9.3f} {name}: {what} {details}{often}")
        return "\n".join(lines)


def _line(entry: tuple[float, str, str, Any]) -> tuple[str, str, str]:
    _, name, what, details = entry
    return name, what, str(details)[:_WIDTH]


@dataclass(frozen=True)
class Report:
    """The result of many schedules: how many ran, and the first that failed, shrunk to the fewest faults."""

    app: str
    first: int
    count: int
    virtual_seconds: float
    failure: ScheduleResult | None = None

    def __str__(self) -> str:
        if self.failure is None:
            return (
                f"{self.app}: {self.count:,} schedules from seed {self.first} kept every promise "
                f"({self.virtual_seconds / 3600:.1f} virtual hours)"
            )
        return f"{self.app}: schedule {self.count} broke a promise\n{self.failure}"


def simulate(
    app: App,
    *,
    commands: Load | None = None,
    check: Check | None = None,
    acts: Acts | None = None,
    schedules: int = 100,
    seed: int = 0,
    workers: int = 2,
    clients: int = 2,
    same_ids: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Runs an App's workers and clients under seeded schedules with faults, until one breaks a guarantee.

    Its reactions call nothing outside.

    Args:
        commands: draws the commands of each client, in order; by default they are drawn from their classes.
        check: given the events of all deciders by key, returns the broken guarantees of the domain. Streams that have
            one key stand one behind the other, in the order of the deciders.
        acts: functions to call in place of the `act` of some reactions; they are called on virtual time.
        schedules: how many, one for each seed from `seed` on. workers: of each decider.
        same_ids: whether clients send a command with an unknown outcome again under its id, as they should;
            False sends it as a new command, like a user who presses a button twice.
        progress: called with how many schedules are done.

    Raises:
        ConfigurationError: nothing would be tested: no schedule, no command, none that can be drawn from their classes,
            or a decider is missing in the App whose events are read or whose commands are sent.
    """
    if schedules < 1:
        raise ConfigurationError(f"schedules={schedules} would test nothing; run one at least")
    _check_whole(app)
    app = _acting(app, acts or {})
    load = partial(_loaded, commands or drawn_load(app, clients, _COMMANDS))
    scenario = Scenario(app, load, workers, same_ids=same_ids, check=check, is_forgetful=False)
    seconds = 0.0
    with scheduled(app):
        for number in range(schedules):
            outcome = run(scenario, seed + number)
            seconds += outcome.seconds
            if outcome.wrong:
                return Report(app.name, seed, number + 1, seconds, shrink(scenario, outcome))
            progress(number + 1)
    return Report(app.name, seed, schedules, seconds)


def _check_whole(app: App) -> None:
    """Refuses an App that waits for what only other Apps do."""
    decided = {decider.name for decider in app.deciders}
    readers: list[Any] = [*app.processes, *app.reactions, *app.views]
    needed = {category: reader.name for reader in readers for category in reader.categories}
    needed |= {sent.__leftfold__.category: process.name for process in app.processes for sent in process.sends}
    for category, name in sorted(needed.items()):
        if category not in decided:
            raise ConfigurationError(
                f"{name} of app {app.name} needs category {category}, which no decider here decides; simulate an App "
                f"that has its decider, too: App('test', deciders=[...], processes=[...], views=[...])"
            )


def _acting(app: App, acts: Acts) -> App:
    """The App whose reactions call these functions, or nothing, in place of their `act`."""
    check_acts(acts, app.reactions, app.name)
    app, reactions = copy(app), app.reactions
    app.reactions = tuple(copy(reaction) for reaction in reactions)
    for original, reaction in zip(reactions, app.reactions, strict=True):
        reaction.act = acts.get(original, _nothing)
    return app


def _nothing(event: Event, delivery: Delivery) -> None:
    """Handles an event without any effect."""


def _loaded(load: Load, chance: random.Random) -> Sequence[Sequence[Command]]:
    """What clients send in one schedule."""
    for _ in range(_DRAWS):
        drawn = [list(commands) for commands in load(chance)]
        if any(drawn):
            return drawn
    raise ConfigurationError(
        f"commands= gave no command in {_DRAWS} calls, so that nothing would be tested; give some at every call"
    )


def scheduled(app: App) -> AbstractContextManager[None]:
    """A context manager for schedules of an App; the simulated modules are replaced once for all of them."""
    if not has_projectors(app):
        return taken_over(more=_REAL_NETWORK)
    from leftfold.testing.simulation import projections

    packages = (*PACKAGES, *projections.PACKAGES)
    return taken_over(packages, [*_REAL_NETWORK, *projections.NETWORK], projections.LIBRARIES)


def run(scenario: Scenario, seed: int, faults: Sequence[Fault] | None = None) -> ScheduleResult:
    """Runs one schedule, within `scheduled()`.

    Args:
        faults: instead of those of the seed.
    """
    # A collection would look at the objects of a schedule again and again, and finalize clients at a moment of its own.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return _run(scenario, seed, faults)
    finally:
        if is_collecting:
            gc.enable()
            gc.collect(0)


def _run(scenario: Scenario, seed: int, faults: Sequence[Fault] | None) -> ScheduleResult:
    chosen = scenario.faults(seed) if faults is None else list(faults)
    world = SimulatedWorld(seed, scenario.brokers)
    with world.activated():
        deployment = Deployment(world, scenario, chosen)
        if not scenario.is_forgetful:
            forgets = world.cluster.forgets
            world.cluster.forgets = lambda: forgets() and False
        wrong: list[str] = []
        try:
            deployment.begin()
            _live(world, deployment, wrong)
            if not wrong:
                lost, whole = deployment.faults.damage.lost, scenario.upgraded or scenario.app
                wrong = violations(world.cluster, whole, deployment.sent, scenario.check, lost, deployment.due)
                if not scenario.is_burying:
                    wrong += dead_letters(world.cluster, whole)
                wrong += deployment.faults.damage.unreported(deployment.trace)
                if deployment.projections is not None:
                    wrong += deployment.projections.violations(world.cluster)
            if all(fault.kind == "terminate" for _, fault in deployment.faults.struck):
                # Of two rebuilds of one view the second ends.
                wrong += [message for role, message in deployment.ended if role != "rebuild"]
        except Stuck as stuck:
            wrong.append(f"stuck: {stuck}")
        finally:
            struck = [(at, "fault", str(fault), "") for at, fault in deployment.faults.struck]
            deployment.is_over = True
            with suppress(Stuck):
                world.close()
    trace = sorted([*deployment.trace, *struck], key=lambda line: line[0])
    return ScheduleResult(seed, tuple(chosen), tuple(wrong), tuple(trace), world.scheduler.now, world.scheduler.events)


def _live(world: SimulatedWorld, deployment: Deployment, wrong: list[str]) -> None:
    """Runs the world until all commands are answered, workers are stopped, restored once more, and settled."""
    scheduler = world.scheduler
    while not world.run(lambda: deployment.is_answered or bool(deployment.broken), 1.0):
        if scheduler.now > max(deployment.faults.until, FAULT_SECONDS) + LIVENESS_SECONDS:
            waiting = [one.id for one in deployment.sent if one.answer is None]
            wrong.append(f"not answered within {LIVENESS_SECONDS:.0f} s: {waiting or 'the deploy'}")
            return
    deployment.faults.stop()
    # All faults are over before the workers are stopped.
    world.run(lambda: scheduler.now > deployment.faults.until, FAULT_SECONDS)
    for part in ("stop", "serve what was left", "stop again"):
        if part == "serve what was left":
            deployment.restart()
            is_there = world.run(lambda: deployment.is_serving, LIVENESS_SECONDS)
            # Commands whose clients have given up must be decided, too.
            until = scheduler.now + LIVENESS_SECONDS
            lost = deployment.faults.damage.lost
            while is_undecided(world.cluster, deployment.app, lost, deployment.due) and scheduler.now < until:
                world.run(lambda: bool(deployment.broken), _SETTLING_SECONDS)
                if deployment.broken:
                    break
            deployment.audit()
            is_there = is_there and world.run(
                lambda: deployment.is_audited or bool(deployment.broken), LIVENESS_SECONDS
            )
        else:
            deployment.end()
            is_there = world.run(lambda: deployment.is_ended, LIVENESS_SECONDS)
        if not is_there and not deployment.broken:
            wrong.append(f"workers do not {part} within {LIVENESS_SECONDS:.0f} s")
            return
    world.run(lambda: not world.cluster.coordinator.open(), LIVENESS_SECONDS)
    wrong += deployment.broken


def shrink(scenario: Scenario, outcome: ScheduleResult) -> ScheduleResult:
    """The same seed with the fewest faults that still fail: without any one of them it passes."""
    for fault in outcome.faults:
        tried = run(scenario, outcome.seed, [one for one in outcome.faults if one is not fault])
        if tried.wrong:
            return shrink(scenario, tried)
    return outcome
