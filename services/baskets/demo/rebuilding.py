"""All views rebuilt by Spark, in one pass over the log, while commands keep flowing."""

from __future__ import annotations

import json
import subprocess

from services.baskets.app import app
from services.baskets.demo.fleet import LEFTFOLD
from services.baskets.demo.telling import say

__all__ = ["rebuild_all"]


def rebuild_all() -> list[str]:
    """What went wrong: a view that was not rebuilt, or whose new rows are not those that were live."""
    command = [*LEFTFOLD, "rebuild", *(view.name for view in app.views), "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    wrong = [f"leftfold rebuild ended with {done.returncode}"] if done.returncode else []
    told = [json.loads(line) for line in done.stdout.splitlines()]
    for one in told:
        same = one["agreement"] == "equal"
        say(
            f"{one['view']}: rebuilt {one['rows']:,} rows from {one['events']:,} events in "
            f"{sum(one['seconds'].values()):.1f} s: {'identical at the same position' if same else one['agreement']}"
        )
        if not same:
            wrong.append(f"{one['view']} was rebuilt and not found equal: {one['agreement']} {one['why']}")
    missing = {view.name for view in app.views} - {one["view"] for one in told}
    return wrong + [f"{name} was not rebuilt" for name in sorted(missing)]
