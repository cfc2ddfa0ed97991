"""Views whose code changes: with a new version, and without one, by projectors, rebuilds and promotions of both codes.

A row of the view without a new version spells which code folded each of its events, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.verify.verification import Verify
from leftfold.engine.views.generation_lifecycle import GenerationLifecycle
from leftfold.engine.views.projector import Projector
from leftfold.errors import ConfigurationError
from leftfold.ports.flush import Generation, Phase
from tests.domains.ledger_world import promotion, rebuild
from tests.domains.shop import Added, BasketEvent, CheckedOut, Summary, household_of, open_baskets
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import FoldBench, out

NEVER = 1e9
HOUSEHOLDS = ("h1", "h2", "h3", "h4", "h5")


def negated(row: Summary | None, event: BasketEvent) -> Summary | None:
    """The fold of the next version: what was folded before is taken for the other way round, and so is the event."""
    found = open_baskets.evolve(row and replace(row, total=-row.total), event)
    return found and replace(found, total=-found.total)


next_version = FoldView("open_baskets", events=BasketEvent, row=Summary, evolve=negated, version=2)
ADDITIONS = [Added(basket_id=f"b{number}", product="p", price=Decimal(1)) for number in range(8)]


@dataclass(frozen=True)
class Spelled:
    by: str


def spelling(code: str) -> Callable[[Spelled | None, CheckedOut], Spelled]:
    """A fold that leaves its letter."""
    return lambda row, event: Spelled((row.by if row else "") + code)


def view_of(code: str) -> FoldView[Any, Any, Any]:
    """The view with one of its codes."""
    return FoldView("spelled", events=CheckedOut, row=Spelled, key=household_of, evolve=spelling(code))


class Deploys:
    """The log, the store and the processes of several codes."""

    def __init__(self) -> None:
        self.bench = FoldBench(view_of("a"))
        self.store = self.bench.store
        self.projectors: dict[str, Projector] = {}
        self.written = 0
        self.claims: dict[str, list[str]] = {}
        """The codes that were seen to fold each generation, in order."""

    @classmethod
    def begun(cls, name: str, count: int = 10, **ids: str) -> Deploys:
        """A log with some events, folded by a projector of code a."""
        deploys = cls()
        deploys.bench.log.ids |= ids
        deploys.start("a", name)
        deploys.fold(count)
        return deploys

    def fold(self, count: int) -> None:
        """Appends checkouts and lets the projectors fold them."""
        self.write(count)
        self.settle()

    def join(self, code: str, name: str, **options: Any) -> None:
        """Starts a projector and lets all of them come to rest."""
        self.start(code, name, **options)
        self.settle()

    def restart(self, code: str, *names: str, **options: Any) -> None:
        """Ends projectors, and starts them again with a code."""
        for name in names:
            self.stop(name)
        for name in names:
            self.start(code, name, **options)

    def live(self) -> dict[str, str]:
        """How the rows that readers see are spelled."""
        return self.rows(self.generation(Phase.LIVE))

    def write(self, count: int = 1) -> None:
        """Appends checkouts, one household after the other."""
        for _ in range(count):
            self.bench.write(out(f"b{self.written}", HOUSEHOLDS[self.written % len(HOUSEHOLDS)], p=1))
            self.written += 1

    def start(self, code: str, name: str, **options: Any) -> Projector:
        """A projector that looks around when it starts, and then when it is made to."""
        self.projectors[name] = Projector(
            [view_of(code)],
            self.bench.log.reader,
            self.store,
            report=lambda what, details: self.bench.reports(what, {"by": name, **details}),
            **{
                "member": name,
                "growth": 1,
                "look": NEVER,
                "lease": 60.0,
                "absence": 0.0,
                "folds": {"spelled": code},
                **options,
            },
        )
        return self.projectors[name]

    def stop(self, name: str) -> None:
        """Ends a projector in order."""
        self.projectors.pop(name).close()

    def look(self, name: str) -> None:
        """Makes a projector look around at its next step."""
        self.projectors[name]._looked = float("-inf")

    def settle(self, only: Collection[str] = ()) -> None:
        """Lets the projectors look and fold until nothing is left to do."""
        idle = 0
        for _ in range(2000):
            count = 0
            for name in [name for name in self.projectors if not only or name in only]:
                self.look(name)
                count += self.projectors[name].step(0.0)
            waiting = any(projector._waiting for projector in self.projectors.values())
            idle = 0 if count or waiting else idle + 1
            if idle > 5:
                return
        raise AssertionError(f"the projectors do not come to rest: {self.bench.reports[-10:]}")

    def rebuild(self, code: str, **options: Any) -> RebuildResult:
        """Builds the view with a code."""
        return rebuild(self.bench, view_of(code), **{"keep": 600.0, "fold": code, **options}).run()

    def promote(self, code: str, named: str = "held", **options: Any) -> RebuildResult:
        """Makes a generation live, with a code at hand."""
        return promotion(self.bench, view_of(code), **{"fold": code, **options}).run(named)

    def assert_refused(self, sentence: str) -> None:
        """Neither verify nor promote works, and each says so."""
        log = self.bench.log
        verify = Verify(
            view_of("a"), self.store, open_log=lambda: CommittedLog(log.reader()), open_store=lambda: self.store
        )
        for work in (lambda: verify.run_named("live"), lambda: self.promote("a")):
            with pytest.raises(ConfigurationError, match=sentence) as refused:
                work()
            assert refused.value.exit_code == 78

    def lifecycle(self, code: str, **options: Any) -> GenerationLifecycle:
        """What a Spark stream of a code follows."""
        log = self.bench.log.reader()
        return GenerationLifecycle(view_of(code), self.store, log, self.bench.reports, fold=code, **options)

    def generation(self, phase: Phase) -> Generation:
        """The only one in a phase."""
        (found,) = [g for g in self.store.registry("spelled").generations.values() if g.phase is phase]
        return found

    def rows(self, generation: Generation) -> dict[str, str]:
        """How its rows are spelled."""
        view = view_of("a")
        found = {}
        for bucket in range(generation.buckets):
            for key in self.store.keys(generation, bucket, "", 100):
                (fields,) = self.store.read(generation, [(bucket, key)]).rows
                assert fields is not None
                found[key] = view.rows.decode(fields).by
        return found

    def whole(self, code: str) -> dict[str, str]:
        """How rows are spelled that one code has folded."""
        return {
            household: code * len(range(number, self.written, len(HOUSEHOLDS)))
            for number, household in enumerate(HOUSEHOLDS)
            if number < self.written
        }
