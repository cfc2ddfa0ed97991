"""What `rebuild`, `plan` and `verify` make of what was typed, before anything slow begins, and without any server."""

from __future__ import annotations

import shlex
import socket
from dataclasses import replace
from typing import Any

import pytest
import typer

from leftfold.cli.main import app
from leftfold.cli.options import given_options
from leftfold.cli.views.rebuild import share_of
from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.errors import ConfigurationError
from leftfold.runtime.project import Usage
from leftfold.runtime.rebuilding import Rebuilding, engine_for_rebuild
from tests.cli.shell import Shell, Typing
from tests.domains.ledger import by_owner
from tests.engine.rebuild.test_planner import plan_of

BASKETS, REPORTS = ("--app", "services.baskets.app:app"), "--app=services.reports.app:app"


def again(*words: str) -> str:
    """What is said to go on with, after these words were typed."""
    commands: Any = typer.main.get_command(app)
    context = commands.get_command(None, "rebuild").make_context("rebuild", list(words))
    work = Rebuilding(None, None, RebuildOptions(), given=given_options(context))
    return work._again([by_owner])


@pytest.mark.parametrize(
    "words",
    [
        "--archive '/backup/the log'",
        "--hold --max-parked 7 --engine local",
        "--as-of 'b-1@5' --name then --archive kept",
        "--master spark://m:7077 --py-files shop --py-files more --cores 16",
        "--keep 3600.0 --anyway --kafka 127.0.0.1:PORT --app tests.domains.ledger:app --json",
    ],
)
def test_every_option_that_was_typed_is_there_again(words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # an address that is typed must answer
        words = words.replace("PORT", str(server.getsockname()[1]))
        found = shlex.split(again("summary", "by_owner", *shlex.split(words)))
    typed = ["leftfold", "rebuild", "by_owner", *shlex.split(words)]
    assert sorted(found) == sorted(typed)
    assert found[:3] == typed[:3]


def test_nothing_is_added_nothing_begins_again_and_no_password_is_shown() -> None:
    words = ("by_owner", "--fresh", "--redis", "redis://:secret@host")
    assert again(*words) == "leftfold rebuild by_owner --redis REDIS_URL", "not the default Redis"
    assert again("by_owner", "--redis", "redis://host").endswith("--redis redis://host")


def test_a_named_master_means_spark_and_what_was_said_is_done_if_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [plan_of(10)]
    assert not engine_for_rebuild(small, "auto", None).spark
    assert str(engine_for_rebuild(small, "auto", "local[2]")) == "on Spark: --master local[2]"
    monkeypatch.setenv("LEFTFOLD_SPARK_MASTER", "local[2]")
    assert not engine_for_rebuild(small, "auto", None).spark, "that is no cluster"
    monkeypatch.setenv("LEFTFOLD_SPARK_MASTER", "k8s://m")
    assert str(engine_for_rebuild(small, "auto", None)) == "on Spark: LEFTFOLD_SPARK_MASTER is k8s://m"
    assert not engine_for_rebuild(small, "local", None).spark, "what was said counts"
    monkeypatch.delenv("LEFTFOLD_SPARK_MASTER")
    assert engine_for_rebuild(small, "spark", None).spark
    with pytest.raises(ConfigurationError, match="view v is computed by Spark; leave --engine local out"):
        engine_for_rebuild([replace(plan_of(10), folded=False)], "local", None)


@pytest.mark.parametrize("words", ["explain store_daily 367/2017-03-01", "retry store_daily", "verify store_daily"])
def test_a_computed_view_cannot_be_looked_at_event_by_event(typed: Typing, words: str) -> None:
    result = typed(*words.split(), REPORTS).ended(2, "view store_daily is computed as a whole by Spark")
    assert result.err.endswith(
        "leftfold rebuild store_daily\nfor these commands: export LEFTFOLD_APP=services.reports.app:app\n"
    )


@pytest.mark.parametrize("option", ["--hold", "--sample=1%"])
def test_a_computed_view_cannot_be_held_back_or_sampled(typed: Typing, option: str) -> None:
    result = typed("rebuild", "store_daily", option, REPORTS)
    assert (result.code, "--hold and --sample are for views that are folded" in result.err) == (2, True)


@pytest.mark.parametrize("words", ["rebuild", "verify --engine spark", "rebuild --sample 1%"])
def test_without_servers_spark_is_not_even_started(shop: Shell, words: str) -> None:
    result = shop(*words.split())
    assert result.code == 78
    assert result.err.startswith("error: no Kafka address: start servers with `leftfold up`")


def test_a_share_is_typed_as_a_part_or_in_percent_and_the_message_names_the_option(shop: Shell) -> None:
    assert [share_of(text, "--share", "one core") for text in ("1%", "0.25", "100%", "1")] == [0.01, 0.25, 1.0, 1.0]
    for text in ("", "0", "200%", "-1%", "much", "nan", "inf"):
        with pytest.raises(Usage, match=f"--share '{text}' is no share of one core"):
            share_of(text, "--share", "one core")
    shop("verify", "--continuous", "--share", "200%").ended(2, "--share '200%' is no share of one core")
    shop("rebuild", "cart_summary", "--engine", "local", "--sample", "lots").ended(
        2, "--sample 'lots' is no share of the rows"
    )


def test_every_view_is_planned_at_a_million_a_billion_and_a_trillion(typed: Typing) -> None:
    rows = typed("plan", "--json", *BASKETS).ok().rows()
    views = {row["view"] for row in rows}
    assert len(rows) == 3 * len(views) == 12
    assert {row["events"] for row in rows} == {10**6, 10**9, 10**12}
    assert all(row["seconds"] > 0 and row["tasks"] >= 1 and row["machine_mb"] > 0 for row in rows)


def test_a_view_without_a_forecast_is_named(typed: Typing) -> None:
    for words in (("plan", "store_daily", REPORTS), ("plan", "store_daily", "--json", REPORTS)):
        result = typed(*words).ok()
        assert result.out == ""
        assert result.err == (
            "left out, since Spark computes them as a whole: store_daily; what their rebuild reads: "
            "leftfold rebuild store_daily --plan\n"
        )


def test_hardware_and_sizes_are_options_of_a_plan(typed: Typing) -> None:
    words = ("plan", "basket_summary", "--events", "1e12", "--partitions", "512", *BASKETS)
    many = ("--cores", "512", "--machines", "32", "--brokers", "9", "--stores", "64")
    small, large, slip = typed(*words), typed(*words, *many), typed("plan", "basket_sumary", *BASKETS)
    assert (small.code, large.code, slip.code) == (0, 0, 2)
    assert all(said in small.out for said in ("1,000,000,000,000", "held up by", " d "))
    assert "512 cores of 32 machine(s), 9 broker(s), 64 server(s)" in large.out
    assert " h " in large.out
    assert "basket_summary" in slip.err


@pytest.mark.parametrize("number", ["inf", "1e400", "nan"])
@pytest.mark.parametrize("option", ["--events", "--rows"])
def test_a_size_that_is_no_number_is_refused(typed: Typing, option: str, number: str) -> None:
    typed("plan", option, number, *BASKETS).ended(2, f"Invalid value for '{option}': Input should be ")
