"""`leftfold run` when things die or hang under it: its parts, itself, the servers, and a projector that stands by."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psutil
import pytest
import redis

from leftfold.local import kill, restart
from tests.cli.shell import ROOT, Shell, items
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Started = Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]
TEA = '{{"cart_id": "{}", "product_id": "tea", "quantity": 2, "price": "3.20"}}'
VIEWS = {"cart_summary", "customer_spend"}


class Running:
    """`leftfold run --plain-logs` with its parts and a log of its own."""

    def __init__(self, shell: Shell, name: str = "run") -> None:
        self.shell = shell.beside(name)
        self.process = self.shell.start(["run", "--plain-logs"])

    def part(self, name: str) -> psutil.Process:
        return next(p for p in psutil.Process(self.process.pid).children() if f"--name={name}" in p.cmdline())

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.shell.said()))

    def wait_at_work(self) -> None:
        wait_until(lambda: self.count(" serving ") and self.count(" following "), "the worker and the projector")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(240.0)


@pytest.fixture
def run(up: Shell) -> Iterator[Running]:
    """A run with a worker and the only projector, at work."""
    run = Running(up)
    run.wait_at_work()
    yield run
    run.end()


def add(shell: Shell, *carts: str) -> None:
    for cart in carts:
        assert shell("send", "AddItem", TEA.format(cart)).code == 0


def views(shell: Shell) -> dict[str, dict[str, Any]]:
    result = shell("status", "--json").ok()
    return {row["name"]: row for row in result.rows() if row["kind"] == "view" and row["live"]}


def projectors(shell: Shell) -> set[int]:
    return {row["projectors"] for row in views(shell).values()}


@contextmanager
def hung(process: psutil.Process) -> Iterator[None]:
    """The process is alive and does nothing while the block runs."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_killed_worker_is_started_again_and_answers(run: Running) -> None:
    run.part("carts").kill()
    wait_until(lambda: run.count(" serving ") == 2, "the new worker")
    assert "carts        restarting  exit=SIGKILL" in run.shell.said()
    add(run.shell, "killed")


def test_killed_itself_it_leaves_no_orphans(run: Running) -> None:
    parts = psutil.Process(run.process.pid).children()
    run.process.kill()
    run.process.wait()
    assert psutil.wait_procs(parts, timeout=240.0)[1] == []


@pytest.mark.parametrize("server", ["redis", "kafka"])
def test_a_server_that_is_not_reachable_for_a_while_is_reported_once_and_waited_for(run: Running, server: str) -> None:
    data = run.shell.place / ".leftfold"
    kill(data, server)
    wait_until(lambda: run.count(r"projector +waiting"), "the projector's complaint")
    restart(data, server)
    wait_until(lambda: run.count(r"projector +going on"), "the projector")
    if server == "redis":
        assert (run.count(r"projector +waiting"), run.count("restarting")) == (1, 0)
    # A command is decided and its event folded, within what a new user has patience for.
    sent = run.shell("send", "AddItem", TEA.format(server), "--timeout", "40").ok()
    position = sent.out.rsplit("position ", 1)[1].strip()
    run.shell("get", "cart_summary", server, "--after", position, "--timeout", "20").ok()
    assert len(run.shell.said().splitlines()) < 20, run.shell.said()


def test_more_workers_share_the_partitions(up: Shell, started: Started) -> None:
    started(up, ["run", "carts", "--workers", "2", "--plain-logs"])
    wait_until(lambda: {"carts.1", "carts.2"} <= set(re.findall(r"(\S+) +serving", up.said())), "two workers")
    wait_until(lambda: "partitions=0-3" not in up.said().rstrip().splitlines()[-1], "a shared group")


def test_a_projector_that_hangs_is_replaced_and_does_no_harm_when_it_wakes(run: Running, up: Shell) -> None:
    other = Running(up, "two")
    try:
        other.wait_at_work()
        wait_until(lambda: projectors(up) == {2}, "both projectors")
        keys = [f"shared-{number}" for number in range(8)]
        with hung(run.part("projector")):
            add(up, *keys)
            wait_until(lambda: all(items(up, key) == 2 for key in keys), "the other projector to fold all of them")
            wait_until(lambda: projectors(up) == {1}, "one of them to be off the list")
            wait_until(lambda: "s behind" not in up("status").err, "status to be content")
        wait_until(lambda: projectors(up) == {2}, "the projector that woke up")
        add(up, *keys)
        wait_until(lambda: all(items(up, key) == 4 for key in keys), "both to fold on")
    finally:
        other.end()


def test_status_names_a_projector_that_hangs_and_what_it_says_to_type_takes_over(
    run: Running, up: Shell, started: Started
) -> None:
    add(up, "hung")
    wait_until(lambda: items(up, "hung") == 2, "the projector to fold")
    with hung(run.part("projector")):
        add(up, "hung")
        wait_until(lambda: "view cart_summary is " in up("status").err, "status to name it")
        result = {name: (row["projectors"], row["lag"] > 0, row["behind"] > 5) for name, row in views(up).items()}
        assert result == dict.fromkeys(VIEWS, (0, True, True))
        assert items(up, "hung") == 2
        line = re.compile(
            r"view cart_summary is \d+ s behind, lag \d+, and no projector is at work on it, or one that hangs \(.*\); "
            r"start one: leftfold (run cart_summary)\n"
        )
        (typed,) = line.findall(up("status").err)
        started(up.beside("standby"), shlex.split(typed))
        wait_until(lambda: items(up, "hung") == 4, "the other projector to take over")
        wait_until(lambda: "view cart_summary is " not in up("status").err, "status to be content")
        wait_until(lambda: views(up)["cart_summary"]["projectors"] == 1, "it to be counted")
        assert "view customer_spend is " in up("status").err, "none was started for that one"
    wait_until(lambda: "s behind" not in up("status").err, "the projector that woke up")


def test_the_twin_whose_place_is_kept_for_long_is_not_replaced_and_status_says_so(up: Shell, started: Started) -> None:
    """The list of projectors is fresh, as it is in the first seconds of every hang: no other may take its buckets."""
    worker = up.beside("worker")
    worker.wait_until(started(worker, ["run", "carts"]), lambda said: '"serving"' in said)  # it has made the topics
    environment = up._environment | {"PYTHONPATH": f"{ROOT / 'framework'}{os.pathsep}{ROOT}"}
    keys = [f"kept-{number}" for number in range(8)]
    projector = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.run.hanging_projector"], cwd=up.place, env=environment
    )
    try:
        wait_until(lambda: projectors(up) == {1}, "the projector")
        add(up, *keys)
        wait_until(lambda: all(items(up, key) == 2 for key in keys), "the projector to fold")
        with hung(psutil.Process(projector.pid)):
            add(up, *keys)
            wait_until(
                lambda: "although 1 projector is at work: it catches up, was stopped" in up("status").err, "status"
            )
            assert all(row["lag"] > 0 and row["behind"] > 5 for row in views(up).values())
            started(up.beside("standby"), ["run", *VIEWS])
            wait_until(lambda: any(items(up, key) == 4 for key in keys), "the other projector to fold its share")
            assert not all(items(up, key) == 4 for key in keys)
            wait_until(lambda: "although 2 projectors are at work" in up("status").err, "both to be counted")
        wait_until(lambda: all(items(up, key) == 4 for key in keys), "both to fold on")
    finally:
        projector.terminate()
        projector.wait(240.0)


def test_a_view_that_cannot_be_read_keeps_status_from_no_other(run: Running, up: Shell) -> None:
    add(up, "read")
    wait_until(lambda: views(up).keys() == VIEWS, "both views to be live")
    address = json.loads((up.place / ".leftfold" / "servers.json").read_text("utf-8"))["redis"]
    with closing(redis.Redis.from_url(address)) as client:
        client.hset("view:cart_summary", "g:0-torn", "{")
        try:
            assert views(up).keys() == {"customer_spend"}
            assert "remove it: HDEL view:cart_summary g:0-torn" in up("status").err
        finally:
            client.hdel("view:cart_summary", "g:0-torn")
    assert views(up).keys() == VIEWS
