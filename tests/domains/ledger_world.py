"""The ledgers App in memory with a random history, and rebuilds and verifications of its views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.rebuild.promotion import Promotion
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.verify.history import RowRetry, RowStep, explain
from leftfold.engine.verify.verification import Verify
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation
from leftfold.testing import fold
from tests.domains.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import FoldBench

__all__ = [
    "NOW", "VIEWS", "each_view", "folded", "ledger_world", "live", "parked", "promotion", "rebuild", "retry",
    "rows_of", "send", "steps_of", "verify",
]  # fmt: skip

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)
each_view = pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.name))


@contextmanager
def ledger_world(count: int = 0, *, seed: int = 5, poison: float = 0.0) -> Iterator[World]:
    """A world in which so many random commands were sent; a share of `poison` makes the summary's fold fail."""
    with memory(app, now=NOW) as world:
        send(world, seed, count, poison=poison)
        yield world


def send(world: World, seed: int, count: int, *, poison: float = 0.0) -> None:
    """Sends random commands."""
    world.client.send_many(list(histories(stranger(seed), count, poison=poison)))


def rows_of(world: World, view: View[Any, Any]) -> dict[Any, Any]:
    """The rows that readers see."""
    return dict(world.views[view].items())


def folded(world: World, view: View[Any, Any]) -> dict[Any, Any]:
    """The rows that the events of the log make."""
    return dict(fold(view, *(recorded.event for recorded in world.events("ledgers"))))


def rebuild(world: World | FoldBench, view: View[Any, Any], **options: Any) -> Rebuild:
    """A rebuild in this process, which by default keeps nothing of what it replaces."""
    return Rebuild(
        view,
        world.store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        open_sink=lambda: world.store,
        options=RebuildOptions(**{"keep": 0, "patience": 0.0, **options}),
    )


def promotion(world: World | FoldBench, view: View[Any, Any], **options: Any) -> Promotion:
    """What makes a generation of a view live, and by default keeps the one before."""
    return Promotion(
        view,
        world.store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        options=RebuildOptions(**{"patience": 0.0, **options}),
    )


def verify(world: World, view: View[Any, Any]) -> Verify:
    """A verification of a view against the log."""
    return Verify(view, world.store, open_log=lambda: CommittedLog(world.log.reader()), open_store=lambda: world.store)


def retry(world: World, view: View[Any, Any]) -> RowRetry:
    """A retry of the parked rows of a view."""
    return RowRetry(view, world.store, lambda: CommittedLog(world.log.reader()))


def steps_of(world: World, view: View[Any, Any], key: str, upto: Position | None = None) -> list[RowStep]:
    """The steps that made a row, up to a position or as far as the view is."""
    upto = upto if upto is not None else world.views[view].describe().position
    return list(explain(view, live(world, view), key, upto, lambda: CommittedLog(world.log.reader())))


def live(world: World, view: View[Any, Any]) -> Generation:
    """The live generation of a view."""
    found = world.store.registry(view.name).live_of(view.hash)
    assert found is not None
    return found


def parked(world: World, view: View[Any, Any] = summary) -> dict[str, str]:
    """Why the parked keys of a view are parked."""
    checkpoints = world.store.checkpoints(live(world, view)).values()
    return {key: why.error for checkpoint in checkpoints for key, why in checkpoint.parked.items()}
