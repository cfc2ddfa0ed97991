"""What `leftfold rebuild` makes of what was typed: the engine, and the command that continues after an interruption."""

from __future__ import annotations

import shlex
import socket
from dataclasses import replace
from typing import Any

import pytest
import typer

from leftfold.cli.main import app
from leftfold.cli.views.rebuild import given_options
from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.errors import ConfigurationError
from leftfold.runtime.rebuilding import Rebuilding, engine_for_rebuild
from tests.domains.ledger import by_owner
from tests.engine.rebuild.test_planner import plan_of


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
    assert again("by_owner", "--fresh", "--redis", "redis://:secret@host") == "leftfold rebuild by_owner"
    assert again("by_owner", "--redis", "redis://host").endswith("--redis redis://host")


def test_a_named_master_means_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [plan_of(10)]
    assert not engine_for_rebuild(small, "auto", None).spark
    assert str(engine_for_rebuild(small, "auto", "local[2]")) == "on Spark: --master local[2]"
    monkeypatch.setenv("LEFTFOLD_SPARK_MASTER", "local[2]")
    assert not engine_for_rebuild(small, "auto", None).spark, "that is no cluster"
    monkeypatch.setenv("LEFTFOLD_SPARK_MASTER", "k8s://m")
    assert str(engine_for_rebuild(small, "auto", None)) == "on Spark: LEFTFOLD_SPARK_MASTER is k8s://m"
    assert not engine_for_rebuild(small, "local", None).spark, "what was said counts"


def test_what_was_said_is_done_if_it_can_be() -> None:
    assert engine_for_rebuild([plan_of(10)], "spark", None).spark
    with pytest.raises(ConfigurationError, match="view v is computed by Spark; leave --engine local out"):
        engine_for_rebuild([replace(plan_of(10), folded=False)], "local", None)
