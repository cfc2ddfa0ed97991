"""A part of the trade as a process of its own: `python -m tests.process.child '<json of Child>'`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Self

from leftfold import App
from leftfold.errors import LeftfoldError
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.worker import Worker
from tests.process.points import TradeShop, pass_points
from tests.worker.points import Point, Points
from tests.worker.shop import Haste

__all__ = ["SESSION", "Child"]

SESSION = 2000


@dataclass(frozen=True)
class Child:
    """Which part of which App works where, and what will happen to it.

    Args:
        part: a decider, a process, or `{process}.router`. app: `module:name`.
        group: what a router appends to the name of its group; routers of two groups both route everything.
    """

    kafka: str
    part: str
    app: str = "tests.domains.trade:app"
    points: tuple[Point, ...] = ()
    group: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(**{**fields, "points": tuple(Point(**point) for point in fields["points"])})

    def work(self, stop: threading.Event) -> None:
        """Works until told to stop."""
        module, _, name = self.app.partition(":")
        app: App = getattr(import_module(module), name)
        settings, points = (
            KafkaSettings(bootstrap_servers=self.kafka),
            Points(self.points, lambda at: _tell("point", {"at": at})),
        )
        process, _, router = self.part.partition(".")
        if router:
            pass_points(points, SESSION, self.group)
            ProcessRouter(app, process, settings, stop=stop, report=_tell).run()
        else:
            Worker(app, self.part, TradeShop(settings, Haste(session=SESSION), points), stop=stop, report=_tell).run()


def _tell(what: str, details: Mapping[str, Any]) -> None:
    """One line in one write: a process that is killed leaves whole lines."""
    os.write(sys.stdout.fileno(), (json.dumps({"what": what, **details}) + "\n").encode())


def main(child: Child) -> int:
    """Works until SIGTERM; returns the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        child.work(stop)
    except LeftfoldError as error:
        _tell("ended", {"error": type(error).__name__, "why": str(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Child.from_json(sys.argv[1])))
