"""A fold is changed, rebuilt beside the live rows, compared with them and put in their place, while commands flow."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from leftfold import Connection
from projections.household_spend import household_spend
from services.baskets.demo.fleet import LEFTFOLD, Fleet
from services.baskets.demo.loading import Loading
from services.baskets.demo.telling import say

__all__ = ["CHANGED", "deploy", "run"]

CHANGED = "services.baskets.demo.changed:app"


def run(*words: str) -> int:
    """Types a command of the changed App and lets it print."""
    return subprocess.run([*LEFTFOLD, *words, "--app", CHANGED], check=False).returncode


def asked(*words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a command and what it answers in JSON."""
    done = subprocess.run([*LEFTFOLD, *words, "--app", CHANGED, "--json"], check=False, capture_output=True, text=True)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def deploy(fleet: Fleet, loading: Loading, lf: Connection) -> list[str]:
    """Deploys the changed fold; returns what went wrong."""
    name, wrong = household_spend.name, []
    fleet.restart(CHANGED)
    say(
        f"{loading.answered:>9,} commands answered: a deploy changes the fold of {name}: a regular spends 250, not 500."
    )
    before = loading.answered
    say(f"leftfold rebuild {name} --hold")
    if run("rebuild", name, "--engine", "local", "--hold"):
        wrong.append("the held rebuild failed")
    say(f"leftfold diff {name} --live --held")
    code, (counts, *rows) = asked("diff", name, "--live", "--held", "--samples", "2")
    say(f"  {counts['equal']:,} rows equal, {counts['different']:,} differ, {counts['unsettled']:,} not settled")
    for row in rows:
        say(f"  household {row['key']}: " + ", ".join(_change(row, field) for field in row["fields"]))
    if code != 3 or not counts["different"] or counts["only_one"] or counts["only_other"]:
        wrong.append(f"the diff should be in segments alone: {counts}")
    wrong += [f"{row['key']} differs in {row['fields']}" for row in rows if row["fields"] != ["segment"]]
    say(f"leftfold promote {name}")
    if run("promote", name):
        wrong.append("the promotion failed")
    say(f"{loading.answered - before:,} commands were answered meanwhile.\n")
    return wrong


def _change(row: dict[str, Any], field: str) -> str:
    return f"{field} {row['one'][field]} -> {row['other'][field]}"
