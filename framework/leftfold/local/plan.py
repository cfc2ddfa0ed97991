"""What a keeper is told to run, in `plan.json`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from leftfold.local.files import write_whole

__all__ = ["ServerPlan", "renew_plan", "write_plan"]


@dataclass(frozen=True)
class ServerPlan:
    """One server to start.

    Args:
        address: where clients reach it.
        command: the program and its arguments.
        console: the file that gets its standard output and error; emptied at each start.
        logs: where the cause of a failure is to be found, the most telling first.
    """

    name: str
    address: str
    command: tuple[str, ...]
    console: Path
    logs: tuple[Path, ...]


def write_plan(data: Path, plans: Iterable[ServerPlan], *, stop_seconds: float) -> str:
    """Write which servers are to run and return the id under which the keeper reports that they were started."""
    return _write(data, [asdict(plan) for plan in plans], stop_seconds)


def renew_plan(data: Path) -> str:
    """Ask for the same servers once more and return the new id."""
    plan = json.loads((data / "plan.json").read_text("utf-8"))
    return _write(data, plan["servers"], plan["stop_seconds"])


def _write(data: Path, servers: object, stop_seconds: float) -> str:
    request = uuid.uuid4().hex
    plan = {"request": request, "stop_seconds": stop_seconds, "servers": servers}
    write_whole(data / "plan.json", json.dumps(plan, default=str, indent=2) + "\n")
    return request
