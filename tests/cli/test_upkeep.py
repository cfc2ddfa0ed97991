"""Servers of `leftfold dev` that die, and what messages say to type meanwhile; `dev` and `up` outside a project."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from leftfold import local
from leftfold.cli.run.dev import kept_up
from leftfold.local.redis import answers_ping
from leftfold.runtime.discovery import Environment, announced
from tests.cli.shell import Typed

REDIS = frozenset({"redis"})
Wait = Callable[[Callable[[], object], str], None]


@pytest.mark.servers
def test_a_server_that_dies_is_started_again_and_both_are_told(place: Path, wait_until: Wait) -> None:
    told: list[tuple[str, Mapping[str, Any]]] = []
    data = place / ".leftfold"
    with kept_up(local.embedded(data, want=REDIS), data, lambda *line: told.append(line)):
        local.kill(data, "redis")
        wait_until(lambda: ("server started again", {"server": "redis"}) in told, "the server to be started again")
        assert answers_ping(announced(place, Environment()).redis, 5.0)
        assert told[0] == ("restarting a server", {"server": "redis", "why": "was killed (SIGKILL)"})
    assert local.status(data).keeper is None


@pytest.mark.servers
def test_what_to_type_fits_who_keeps_the_servers(
    place: Path, typed: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    data, words = place / ".leftfold", ("get", "wound", "x", "--app", "tests.cli.tower:app")
    assert "leftfold up" in typed(*words).err
    with local.embedded(data, want=REDIS):
        local.kill(data, "redis")
        for told in (typed("status"), typed(*words)):
            assert told.code == 69
            assert f"process {os.getpid()} keeps the servers here: leftfold dev starts one again" in told.err
            assert "leftfold up" not in told.err


@pytest.mark.parametrize("command", ["dev", "up"])
def test_outside_a_project_nothing_is_started(place: Path, typed: Callable[..., Typed], command: str) -> None:
    told = typed(command)
    assert told.code == 78
    assert f"{place} is in no project" in told.err
    assert list(place.iterdir()) == []


@pytest.mark.servers
def test_data_that_is_named_needs_no_project(
    place: Path, typed: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LEFTFOLD_DATA", str(place / "play"))
    try:
        assert typed("up").code == 0
    finally:
        assert typed("down").code == 0
