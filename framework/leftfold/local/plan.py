"""What a keeper is told to run, in `plan.json`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from leftfold.local.files import write_whole

__all__ = ["ServerPlan", "drop_plan", "write_plan"]


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
    """Write which servers are to run, beside those of the plan before, and return the id of this request.

    The keeper reports the id once the servers were started.
    """
    servers = {**_planned(data), **{plan.name: asdict(plan) for plan in plans}}
    request = uuid.uuid4().hex
    plan = {"request": request, "stop_seconds": stop_seconds, "servers": list(servers.values())}
    write_whole(data / "plan.json", json.dumps(plan, default=str, indent=2) + "\n")
    return request


def drop_plan(data: Path) -> None:
    """Forget the servers of a keeper that is gone."""
    (data / "plan.json").unlink(missing_ok=True)


def _planned(data: Path) -> dict[str, object]:
    try:
        plan = json.loads((data / "plan.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {server["name"]: server for server in plan["servers"]}
