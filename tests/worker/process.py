"""A worker as a process of its own: `python -m tests.worker.process '<json of Circumstances>'`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from leftfold.errors import LeftfoldError
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.worker import Worker
from tests.worker.bank import PARTITIONS, bank
from tests.worker.points import Point, Points
from tests.worker.shop import FaultyShop, Haste

__all__ = ["Circumstances"]


@dataclass(frozen=True)
class Circumstances:
    """Where a worker works, at what, and what will happen to it."""

    kafka: str
    bank: str
    version: int = 1
    partitions: int = PARTITIONS
    batch: int = 200
    haste: Haste = field(default_factory=Haste)
    points: tuple[Point, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        haste, points = Haste(**fields.pop("haste")), tuple(Point(**p) for p in fields.pop("points"))
        return cls(**fields, haste=haste, points=points)


def _tell(what: str, details: Mapping[str, Any]) -> None:
    """One line in one write: a process that is killed leaves whole lines."""
    os.write(sys.stdout.fileno(), (json.dumps({"what": what, **details}) + "\n").encode())


def main(given: Circumstances) -> int:
    """Works until SIGTERM; returns the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    one = bank(given.bank, version=given.version, partitions=given.partitions)
    points = Points(given.points, lambda at: _tell("point", {"at": at}))
    shop = FaultyShop(KafkaSettings(bootstrap_servers=given.kafka), given.haste, points)
    try:
        worker = Worker(one.app, one.name, shop, stop=stop, batch=given.batch, report=_tell)
        try:
            worker.run()
        finally:
            _tell("counts", worker.counts)
    except LeftfoldError as error:
        _tell("ended", {"error": type(error).__name__, "why": str(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Circumstances.from_json(sys.argv[1])))
