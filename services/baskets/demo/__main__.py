"""Loads grocery baskets through a worker that is killed on the way, rebuilds the views, and proves the totals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from leftfold import Connection, LeftfoldError, connect
from leftfold.client.commands import Client
from leftfold.local import StderrProgress, down, up
from projections.basket_summary import basket_summary
from projections.household_spend import Segment, in_segment
from projections.product_sales import best_sellers
from projections.store_totals import takings
from services.baskets.app import app
from services.baskets.audit import audit
from services.baskets.demo.deploy import deploy
from services.baskets.demo.fleet import LEFTFOLD, Fleet
from services.baskets.demo.journeys import PAID, journeys, other_services
from services.baskets.demo.loading import Loading
from services.baskets.demo.looking_back import look_back
from services.baskets.demo.picture import CONSOLE
from services.baskets.demo.rebuilding import rebuild_all
from services.baskets.demo.telling import say
from services.baskets.history import history
from services.baskets.receipts import WEEKS
from services.baskets.truth import Truth, truth

__all__ = ["main"]

DATA = Path(".leftfold")
MARKER = DATA / "demo"
_SERVERS = ("LEFTFOLD_KAFKA_", "LEFTFOLD_REDIS_")


def main() -> int:
    """Runs the demo; 0 when everything it claims was checked and holds."""
    weeks = WEEKS if os.environ.get("FULL") else range(1, 5)
    began = time.monotonic()
    _check_environment()
    _clear()
    servers = up(progress=StderrProgress())
    MARKER.touch()
    say(f"Kafka is at {servers.kafka} and Redis at {servers.redis}, both children of one keeper in {DATA}/.")
    try:
        wrong = _story(weeks)
    finally:
        if os.environ.get("ONCE"):
            down(DATA)
    if wrong:
        say(f"{len(wrong)} checks failed:", *wrong[:10], sep="\n  ")
        return 3
    say(f"\nEverything above was checked as it was printed. It took {time.monotonic() - began:.0f} s.")
    _farewell()
    return 0


def _story(weeks: range) -> list[str]:
    total = sum(1 for _ in history(weeks))
    sums = truth(weeks)
    say(f"{total:,} commands make up {sums.chain.baskets:,} baskets of {len(weeks)} weeks.\n")
    with Fleet(DATA / "logs" / "run.log") as fleet, connect(app) as lf:
        fleet.pid("baskets")
        loading = Loading(_client(lf), weeks, total)
        loading.start()
        for share, part in ((0.1, "baskets"), (0.25, "projector"), (0.4, "baskets")):
            loading.wait_answered(share)
            pid = fleet.kill(part)
            say(f"{loading.answered:>9,} commands answered: SIGKILL to the {part} process ({pid}).", end=" ")
            say(f"The supervisor started {fleet.pid(part)} in its place.")
        loading.wait_answered(0.5)
        loading.slow_down(1_500)
        before, then = loading.answered, loading.position
        say(f"{before:>9,} commands answered: Spark rebuilds all views while commands keep flowing.\n")
        wrong = rebuild_all()
        say(f"\n{loading.answered - before:,} commands were answered during the rebuild.")
        loading.slow_down(None)
        loading.wait_answered(0.8, timeout=7200)
        loading.slow_down(1_500)
        changes = deploy(fleet, loading, lf)
        loading.slow_down(None)
        loading.wait_answered(1.0, timeout=7200)
        say(
            f"All {loading.answered:,} commands answered in {loading.seconds:.1f} s "
            f"({loading.answered / loading.seconds:,.0f}/s with the kills and the rebuild): "
            f"{loading.counts['accepted']:,} accepted, {loading.counts['rejected']:,} rejected, "
            f"{loading.counts['asked again']:,} asked for again because their worker died."
        )
        with other_services(fleet.log.parent):
            wrong += changes + _proof(lf, loading, sums) + look_back(lf, then)
            return wrong + journeys(lf, DATA)


def _client(lf: Connection) -> Client:
    """The client, as soon as the App has made its topics."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return lf.client
        except LeftfoldError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _proof(lf: Connection, loading: Loading, sums: Truth) -> list[str]:
    wrong = [f"rejected: {why}" for why in loading.counts if ": " in why]
    for view in app.views:
        lf.views[view].wait_reached(loading.position, timeout=120.0)
    found, due = takings(lf.views), sums.chain.sales_value
    say(f"The stores took {found:,} dollars by the view and {due:,} by the source data.")
    if found != due:
        wrong.append(f"takings are {found}, should be {due}")
    differences = audit(lf.views, sums)
    say(
        f"{len(sums.households):,} households, {len(sums.stores):,} stores and {len(sums.products):,} products were "
        f"compared with the source to the cent: {len(differences)} differences.\n"
    )
    _look(lf)
    return wrong + differences


def _look(lf: Connection) -> None:
    page = lf.views[basket_summary].scan(limit=1)
    key, row = page.rows[0]
    say(f"One basket's events, by leftfold events baskets {key}:")
    subprocess.run([*LEFTFOLD, "events", "baskets", key, "--limit", "6"], check=False)
    say("\nThree typed queries:")
    say(f"views[basket_summary].get({key!r}) ->\n  {row!r}")
    devoted = max(in_segment(lf.views, Segment.REGULAR).values(), key=lambda h: h.total, default=None)
    say(f"the best of views[household_spend].find(segment=Segment.REGULAR) ->\n  {devoted!r}")
    say(f"best_sellers(views, 1) ->\n  {best_sellers(lf.views, 1)[0]!r}")


def _check_environment() -> None:
    """Refuses variables that would have the demo write to other servers than its own."""
    names = ("LEFTFOLD_APP", "LEFTFOLD_ARCHIVE_DIR", "LEFTFOLD_DATA", "LEFTFOLD_SPARK_MASTER")
    found = [name for name in sorted(os.environ) if name in names or name.startswith(_SERVERS)]
    if found:
        raise SystemExit(f"the demo starts servers of its own: unset {' '.join(found)}")


def _clear() -> None:
    """Removes what an earlier demo left; data that is not the demo's is never touched."""
    if MARKER.exists():
        down(DATA)
        shutil.rmtree(DATA)
    elif DATA.exists() and any(DATA.iterdir()):
        raise SystemExit(f"{DATA}/ holds data that is not the demo's; move it away, or run the demo in a fresh clone")


def _farewell() -> None:
    say("The two journeys as pictures, whose nodes are links to the console:", *sorted(DATA.glob("*.svg")), sep="\n  ")
    if os.environ.get("ONCE"):
        say("The servers are stopped (ONCE=1); with .venv/bin on your PATH, this shows all of it in a browser:")
        say(f"  leftfold up && leftfold console      ({CONSOLE}/trace?id=CheckOut-{PAID} draws the journey)")
        return
    say("The servers are still up. Try, with .venv/bin on your PATH:")
    for line in (
        "leftfold status",
        "leftfold run                         (the worker and the projector; Ctrl-C stops them)",
        "leftfold events baskets --follow",
        "leftfold get store_totals 367",
        "leftfold rebuild household_spend",
        f"leftfold log trace CheckOut-{PAID}",
        "leftfold console                     (all of it in a browser, once this runs:",
        f"                                     {CONSOLE}/trace?id=CheckOut-{PAID} draws the journey)",
        "leftfold down                        (make clean removes the data)",
    ):
        say(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
