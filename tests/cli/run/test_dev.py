"""`leftfold dev`: own servers, a restart for each change or death, nothing left behind; and the end of the tutorial."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from leftfold import local
from leftfold.cli.run.dev import Reloading, _gateway, changes, kept_up, scan
from leftfold.errors import InfrastructureError
from leftfold.local.redis import answers_ping
from leftfold.runtime.discovery import Environment, announced
from tests.cli.shell import ROOT, Shell, Typing
from tests.free_ports import free_port
from tests.project.test_documents import program
from tests.waiting import wait_until

Started = Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]
REDIS = frozenset({"redis"})
SECONDS = 240.0
SCHEDULE = {"screening_id": "s2", "film": "Nosferatu", "seats": 1, "price": "1"}


def answers(http: httpx.Client, path: str) -> bool:
    """Whether the gateway answers well."""
    try:
        return http.get(path).status_code == 200
    except httpx.TransportError:
        return False


def is_scheduled(http: httpx.Client) -> bool:
    """Whether the screening is decided; it is sent again where its outcome is not known yet."""
    headers, params = {"Idempotency-Key": "schedule-s2"}, {"timeout": 60}
    answer = http.post("/commands/screenings/Schedule", json=SCHEDULE, headers=headers, params=params)
    assert answer.status_code in (200, 202, 503), answer.text
    return answer.status_code == 200


def command_line(process: psutil.Process) -> str:
    """How a process was started; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """All descendants; the servers are among them."""
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.servers
@pytest.mark.slow
def test_the_tutorial_ends_with_a_view_as_it_was_and_its_dev_reloads_changes_and_stops_all_that_it_started(
    tmp_path: Path, started: Started
) -> None:
    """The commands of the last section, typed as they stand there."""
    file, port = program("docs/tutorial.md", tmp_path).rename(tmp_path / "cinema.py"), free_port()
    section = (ROOT / "docs" / "tutorial.md").read_text("utf-8").partition("\n## 8. ")[2]
    lines = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).splitlines()
    shell, (words, *rest) = Shell(tmp_path), [shlex.split(line)[1:] for line in lines]
    assert words[0] == "dev"
    dev = started(shell, [*words, "--plain-logs", f"--port={port}"])
    shell.wait_until(dev, lambda said: " serving " in said and " following " in said)
    assert any("java" in process.name() for process in family(dev))
    assert [line for line in shell.said().splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line)] == []
    free = iter((4, 4, 2))
    for words in rest:
        if words[0] == "get":
            seats = next(free)
            wait_until(lambda w=words, s=seats: re.search(rf"free\s+{s}\b", shell(*w).out), " ".join(words))  # type: ignore[misc]  # a lambda's own names
        else:
            shell(*words).ok()
    assert next(free, None) is None
    a_change_starts_the_app_again(shell, dev, file)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as http:
        wait_until(lambda: answers(http, "/health/ready"), "the gateway")
        wait_until(lambda: is_scheduled(http), shell.said)
        assert "Overview" in http.get("/console/").text
    everything = family(dev)
    password = (tmp_path / ".leftfold" / "redis" / "password").read_text("utf-8").strip()
    result = [shell.said(), *map(command_line, everything)]
    assert password
    assert [line for line in result if password in line] == []
    dev.send_signal(signal.SIGINT)
    assert dev.wait(SECONDS) == 130
    assert psutil.wait_procs(everything, timeout=SECONDS)[1] == []
    assert shell("status", "--app", "cinema:app").code == 69


def a_change_starts_the_app_again(shell: Shell, dev: subprocess.Popen[bytes], file: Path) -> None:
    before, served = file.read_text("utf-8"), shell.said().count(" serving ")
    file.write_text(before + "\nx = (\n", "utf-8")
    shell.wait_until(dev, lambda said: "'(' was never closed" in said and "waiting for a change" in said)
    file.write_text(before, "utf-8")
    shell.wait_until(dev, lambda said: said.count(" serving ") > served)
    assert f"changed={file.name}" in shell.said()


@pytest.mark.faults
@pytest.mark.servers
def test_a_killed_dev_leaves_nothing_behind(shop: Shell, started: Started) -> None:
    dev = started(shop, ["dev", "--plain-logs", f"--port={free_port()}"])
    shop.wait_until(dev, lambda said: " serving " in said and " following " in said)
    everything = family(dev)
    dev.kill()
    dev.wait()
    assert psutil.wait_procs(everything, timeout=SECONDS)[1] == []


@pytest.mark.servers
def test_a_server_that_dies_is_started_again_and_both_are_reported(
    place: Path, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    data, words = place / ".leftfold", ("get", "wound", "x", "--app", "tests.cli.tower:app")
    assert "leftfold up" in typed(*words).err
    result: list[tuple[str, Mapping[str, Any]]] = []
    with kept_up(local.embedded(data, want=REDIS), data, lambda *line: result.append(line), threading.Event()):
        local.kill(data, "redis")
        wait_until(lambda: ("server started again", {"server": "redis"}) in result, "the server to be started again")
        assert answers_ping(announced(place, Environment()).redis, 5.0)
        assert result[0] == ("restarting a server", {"server": "redis", "why": "was killed (SIGKILL)"})
    assert local.status(data).keeper is None
    with local.embedded(data, want=REDIS):
        local.kill(data, "redis")
        for answer in (typed("status"), typed(*words)):
            assert answer.code == 69
            assert (
                f"process {os.getpid()} keeps the servers here: `leftfold dev` starts one again by itself" in answer.err
            )
            assert "leftfold up" not in answer.err


def test_servers_that_ended_with_their_directory_end_the_command_with_a_reason(tmp_path: Path) -> None:
    data, stop, said = tmp_path / "deleted", threading.Event(), list[tuple[str, Mapping[str, Any]]]()
    with (
        pytest.raises(InfrastructureError, match=r"deleted have ended, .* start them again: leftfold dev$"),
        kept_up(nullcontext(), data, lambda *line: said.append(line), stop),
    ):
        assert stop.wait(SECONDS)
    assert said == [("servers ended", {"data": str(data)})]


@pytest.mark.parametrize("command", ["dev", "up"])
def test_outside_a_project_nothing_is_started(place: Path, typed: Typing, command: str) -> None:
    typed(command).ended(78, f"{place} is in no project")
    assert list(place.iterdir()) == []


@pytest.mark.servers
def test_data_that_is_named_needs_no_project(place: Path, typed: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LEFTFOLD_DATA", str(place / "play"))
    try:
        assert typed("up").code == 0
    finally:
        assert typed("down").code == 0


def test_source_files_are_seen_and_the_rest_is_not(tmp_path: Path) -> None:
    for name in ("shop/a.py", "pyproject.toml", "shop/b.txt", ".venv/c.py", "env/d.py", "tests/e.py", "shop/.hid/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", "utf-8")
    (tmp_path / "env" / "pyvenv.cfg").write_text("", "utf-8")
    assert sorted(scan(tmp_path)) == ["pyproject.toml", "shop/a.py"]


def test_new_deleted_and_changed_files_are_changes(tmp_path: Path) -> None:
    kept, deleted, changed = (tmp_path / name for name in ("kept.py", "deleted.py", "changed.py"))
    for file in (kept, deleted, changed):
        file.write_text("", "utf-8")
    before = scan(tmp_path)
    deleted.unlink()
    os.utime(changed, ns=(1, 1))
    (tmp_path / "new.py").write_text("", "utf-8")
    assert changes(before, scan(tmp_path)) == ["changed.py", "deleted.py", "new.py"]
    assert changes(before, before) == []


def test_a_command_that_cannot_be_started_now_waits_for_a_change(tmp_path: Path) -> None:
    """A machine without another process to give is no reason to end the servers."""
    stop, said = threading.Event(), list[tuple[str, Mapping[str, Any]]]()
    stop.set()
    too_large = {"LEFTFOLD_APP": "x" * 10_000_000}  # the kernel starts no process with it
    Reloading(tmp_path, [["run"], ["serve"]], too_large, stop=stop, report=lambda *line: said.append(line)).run()
    assert [(what, details["command"]) for what, details in said] == [("not started", "run"), ("not started", "serve")]
    assert "too long" in said[0][1]["why"]


@pytest.mark.parametrize(("variable", "has_console"), [("", True), ("KEYS", False), ("AUTHORIZE", False)])
def test_where_callers_need_credentials_the_gateway_comes_without_a_console(
    monkeypatch: pytest.MonkeyPatch, variable: str, has_console: bool
) -> None:
    """A console there needs roles, which `leftfold dev` cannot know; the gateway would not start at all."""
    if variable:
        monkeypatch.setenv(f"LEFTFOLD_HTTP_{variable}", "shop.rules:may")
    said: list[str] = []
    words = _gateway(18080, lambda what, _: said.append(what))
    assert words[0] == "serve"
    assert ("--console" in words, "no console" in said) == (has_console, not has_console)
