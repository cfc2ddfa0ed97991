"""The worker of query views: what its reference files may be at the start and later, and the death of Spark."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ConfigurationError
from leftfold.model.computed_views import QueryView
from leftfold.runtime.workers.query_workers import QueryViewThread, _RefreshLoop
from tests.cli.shell import Shell, running
from tests.domains.ledger import Moved
from tests.reports import Reports
from tests.servers import Addresses, secret_url
from tests.spark.conftest import Shop
from tests.spark.queries.streams import agreement, caught_up
from tests.spark.queries.views import owner_sums, regions, sums_of
from tests.threads import Background, Work
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("forgotten")]

WHOLE = "owner,region\no/1,{}\n"
UNUSABLE = pytest.mark.parametrize(
    ("content", "why"),
    [(None, "owners.csv' is not there"), ("owner,region\no/1,north\no/2", "owners.csv is not what Region says")],
    ids=["absent", "half-written"],
)


def put(file: Path, content: str | None) -> None:
    """Gives a reference file another content; None removes it."""
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_text(content)


@pytest.fixture
def addressed(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a worker on the shop's servers."""
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", str(shop.kafka.bootstrap_servers))
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", secret_url(shop.redis))
    monkeypatch.setenv("LEFTFOLD_SPARK_CHECKPOINTS", str(tmp_path / "checkpoints"))


def refreshing(shop: Shop, reports: Reports, *views: QueryView[Any, Any]) -> Work:
    """A worker of some views."""

    def work(stop: threading.Event) -> None:
        loop = _RefreshLoop(shop.spark, 0.05, stop, reports, "")
        for view in views:
            loop.add(view)
        loop.run()

    return work


def at_intervals(view: QueryView[Any, Any]) -> QueryView[Any, Any]:
    """The same rows, by a query that no stream can keep."""
    query = f"{view.query} HAVING count(*) > 0"
    rest: dict[str, Any] = {"row": view.rows.row, "key": lambda r: r.region, "references": view.references}
    return QueryView("regions_at_intervals", events=Moved, query=query, **rest)


@pytest.mark.usefixtures("addressed")
@UNUSABLE
def test_a_worker_does_not_start_with_a_reference_file_that_is_unusable(
    shop: Shop, tmp_path: Path, content: str | None, why: str
) -> None:
    put(tmp_path / "owners.csv", content)
    loop = _RefreshLoop(shop.spark, 0.05, threading.Event(), Reports(), "")
    with pytest.raises(ConfigurationError, match=why):
        loop.add(regions(tmp_path / "owners.csv"))


@pytest.mark.usefixtures("addressed")
@UNUSABLE
def test_a_worker_waits_for_a_reference_file_that_was_usable_before(
    shop: Shop, tmp_path: Path, content: str | None, why: str
) -> None:
    file, reports = tmp_path / "owners.csv", Reports()
    put(file, WHOLE.format("north"))
    view, other = at_intervals(regions(file)), sums_of("other_sums", query=f"{owner_sums.query} HAVING count(*) > 0")

    def refreshed(view: QueryView[Any, Any]) -> int:
        return sum(1 for details in reports.of("refreshed") if details["view"] == view.name)

    with Background(refreshing(shop, reports, view, other)) as worker:
        wait_until(lambda: refreshed(view) and refreshed(other), "the first rows", running=lambda: worker.going)
        put(file, content)
        wait_until(lambda: reports.of("waiting"), "the file to be missed", running=lambda: worker.going)
        assert why in reports.of("waiting")[0]["why"]
        shop.move("another", "1.00")
        wait_until(lambda: refreshed(other) > 1, "the view without files", running=lambda: worker.going)
        assert refreshed(view) == 1
        assert not reports.of("going on"), "what another view does is no end of the outage"
        put(file, WHOLE.format("south"))
        wait_until(lambda: refreshed(view) == 2, "the next rows", running=lambda: worker.going)
        wait_until(lambda: reports.of("going on"), "the end of the outage", running=lambda: worker.going)
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}


@pytest.mark.usefixtures("addressed")
@UNUSABLE
def test_a_stream_waits_for_a_reference_file_that_was_usable_before(
    shop: Shop, tmp_path: Path, content: str | None, why: str
) -> None:
    file, reports, stop = tmp_path / "owners.csv", Reports(), threading.Event()
    put(file, content)
    view = regions(file)
    kept = QueryViewThread(shop.spark, view, shuffles=2, keep=0, archive="", stop=stop, report=reports)
    kept.start()
    try:
        wait_until(lambda: reports.of("waiting"), "the file to be missed", running=kept.is_alive)
        assert why in reports.of("waiting")[0]["why"]
        put(file, WHOLE.format("south"))
        wait_until(lambda: reports.of("generation live"), "its rows", running=kept.is_alive)
    finally:
        stop.set()
        kept.join(WAIT_SECONDS)
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}


def test_a_worker_whose_spark_dies_ends_and_the_next_one_continues_its_stream(shop: Shop, tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"LEFTFOLD_SPARK_CHECKPOINTS": str(tmp_path / "checkpoints")})
    shell.at(Addresses(str(shop.kafka.bootstrap_servers), secret_url(shop.redis)))
    with running(shell, "run", "owner_sums", "--json-logs", "--app=tests.spark.queries.views:app") as process:
        shell.wait_until(process, partial(is_live, shop))
        next(one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java").kill()
        shell.wait_until(process, lambda said: '"restarting"' in said)
        caught_up(shop, shop.move("revived", "7.00"))
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130, shell.said()
    lines = shell.lines()
    (died,) = [line["why"] for line in lines if line["event"] == "waiting"]
    assert died.startswith("Spark has died or run out of memory; "), "what the operator can do is logged, too"
    assert [line["exit"] for line in lines if line["event"] == "restarting"] == ["1"], shell.said()
    assert [line["view"] for line in lines if line["event"] == "stream continues"] == [owner_sums.name], shell.said()
    assert agreement(shop) is Agreement.EQUAL


def is_live(shop: Shop, said: str) -> bool:
    return shop.store.registry(owner_sums.name).live_of(owner_sums.hash) is not None
