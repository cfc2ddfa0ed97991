"""Query views as an operator meets them: check, rebuild, run."""

from __future__ import annotations

import signal
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, Typed, running
from tests.servers import Addresses, secret_url
from tests.spark.conftest import Shop
from tests.spark.queries.views import owner_frame, owner_sums, still_open
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.usefixtures("forgotten")]

APP = "--app=tests.spark.queries.views:app"


def leftfold(shop: Shop, *words: str) -> Typed:
    """Typed in this process, which has a session of Spark."""
    return Shell(Path.cwd(), {"LEFTFOLD_KAFKA_REQUEST_TIMEOUT": str(WAIT_SECONDS)}).here(*words, APP, *shop.addresses)


def test_rebuild_computes_a_query_view_and_json_says_what_came_of_it(shop: Shop) -> None:
    first, second = leftfold(shop, "rebuild", "owner_sums", "still_open", "--json", "--keep", "0").ok().rows()
    assert (first["view"], first["agreement"], first["swapped"]) == ("owner_sums", "no predecessor", True)
    assert first["rows"] == shop.views[owner_sums].describe().rows >= 7
    assert second["checksum"] == shop.views[still_open].describe().checksum


def test_the_plan_says_how_each_view_is_kept(shop: Shop) -> None:
    done = leftfold(shop, "rebuild", "--plan", "--json", "--engine", "spark").ok()
    reported = {line["view"]: line for line in done.rows()}
    assert {name: line["incremental"] for name, line in reported.items()} == {
        "owner_sums": True,
        "balances": False,
        "still_open": False,
        "owner_frame": False,
    }
    assert reported["balances"]["why"] == "it has WITH"
    people = leftfold(shop, "rebuild", "--plan", "owner_sums", "--engine", "spark")
    assert "computed from tables" in people.out
    assert "incremental: one GROUP BY over one table of events" in people.out


def test_without_spark_a_query_view_cannot_be_computed(shop: Shop) -> None:
    leftfold(shop, "rebuild", "owner_sums", "--engine", "local").ended(
        78, "view owner_sums is computed by Spark; leave --engine local out"
    )


@pytest.mark.faults
def test_check_judges_the_sql_of_every_view(shop: Shop) -> None:
    kafka = shop.addresses[:2]
    done = Shell(Path.cwd()).here("check", APP, *kafka)
    assert "view balances is kept by batch and swap: it has WITH" in done.err
    assert "view owner_sums is kept by incremental: one GROUP BY" in done.err
    refused = Shell(Path.cwd()).here("check", APP.replace(":app", ":hostile"), *kafka)
    assert refused.code == 1
    assert "the function reflect is not allowed in a query view" in refused.out
    assert "no column total for OwnerSums.total" in refused.out


@pytest.mark.faults
def test_run_keeps_views_by_a_stream_or_again_and_again(shop: Shop, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    shell = Shell(tmp_path, {"LEFTFOLD_SPARK_CHECKPOINTS": str(checkpoints)})
    shell.at(Addresses(str(shop.kafka.bootstrap_servers), secret_url(shop.redis)))
    words = ["run", "still_open", "owner_frame", "owner_sums", "--every", "1s", "--json-logs", APP]
    with running(shell, *words) as process:
        for view in (still_open, owner_frame, owner_sums):
            shell.wait_until(process, partial(is_live, shop, view))
        position = shop.move("runner", "7.00")
        for kept in (owner_frame, owner_sums):
            row = shop.views[kept].get("runner", after=position, timeout=WAIT_SECONDS)
            assert row is not None
            assert row.total == Decimal("7.00")
        await_refreshed(shop, shell)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130, shell.said()
    said, lines = shell.said(), shell.lines()
    assert lines[-1]["event"] == "stopped"
    assert not [line for line in lines if "exception" in line or "Traceback" in str(line) or "Py4J" in str(line)], said
    events = [line["event"] for line in lines]
    assert events.index("starting Spark") < events.index("refreshing"), "nothing else is said for seconds"
    refreshed = [line for line in lines if line["event"] == "refreshed"]
    assert {line["view"] for line in refreshed} == {"still_open", "owner_frame"}
    assert [line["view"] for line in lines if line["event"] == "generation live"] == ["owner_sums"]
    assert [path.name for path in checkpoints.glob("*")] == ["owner_sums"]
    assert not [line for line in lines if line["event"] in ("failed", "killed", "restarting")], said


def await_refreshed(shop: Shop, shell: Shell) -> None:
    """Waits until the view that is computed last has said so: no refresh is under way until events or files change."""
    live = shop.store.registry(owner_frame.name).live_of(owner_frame.hash)
    assert live is not None
    said = f'"generation": "{live.id}"'
    wait_until(
        lambda: any('"refreshed"' in line and said in line for line in shell.said().splitlines()),
        shell.said,
    )


def is_live(shop: Shop, view: Any, said: str) -> bool:
    return shop.store.registry(view.name).live_of(view.hash) is not None
