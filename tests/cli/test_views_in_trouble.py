"""Views in trouble: `status` says how far one is behind whose projector hangs, and what to type; it fails for none."""

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

from tests.cli.shell import ROOT, Shell
from tests.cli.test_run_faults import TEA, Running
from tests.cli.test_two_tails import Beside, items

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Wait = Callable[[Callable[[], object], str], None]
Started = Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]
VIEWS = {"cart_summary", "customer_spend"}


@pytest.fixture
def run(up: Shell, wait_until: Wait) -> Iterator[Running]:
    """A worker and the only projector."""
    run = Running(Beside(up, "hung"))
    wait_until(lambda: run.count(" serving ") and run.count(" following "), "both to work")
    yield run
    run.process.terminate()
    run.process.wait(240.0)


@contextmanager
def hung(process: psutil.Process) -> Iterator[None]:
    """The process is alive and does nothing while the block runs."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def views(shell: Shell) -> dict[str, dict[str, Any]]:
    told = shell("status", "--json")
    assert told.code == 0, told.err
    return {row["name"]: row for row in told.rows() if row["kind"] == "view" and row["live"]}


def test_status_tells_of_a_tail_that_hangs_and_what_it_says_to_type_takes_over(
    run: Running, up: Shell, wait_until: Wait, started: Started
) -> None:
    assert up("send", "AddItem", TEA.format("hung")).code == 0
    wait_until(lambda: items(up, "hung") == 2, "the tail to fold")
    with hung(run.part("tail")):
        assert up("send", "AddItem", TEA.format("hung")).code == 0
        wait_until(lambda: "view cart_summary is " in up("status").err, "status to tell of it")
        told = {name: (row["tails"], row["lag"] > 0, row["behind"] > 5) for name, row in views(up).items()}
        assert told == dict.fromkeys(VIEWS, (0, True, True))
        assert items(up, "hung") == 2
        line = re.compile(
            r"view cart_summary is \d+ s behind, lag \d+, and no tail is at work on it, or one that hangs \(.*\); "
            r"start one: leftfold (run cart_summary)\n"
        )
        (typed,) = line.findall(up("status").err)
        started(Beside(up, "standby"), shlex.split(typed))
        wait_until(lambda: items(up, "hung") == 4, "the other tail to take over")
        wait_until(lambda: "view cart_summary is " not in up("status").err, "status to be content")
        wait_until(lambda: views(up)["cart_summary"]["tails"] == 1, "it to be counted")
        assert "view customer_spend is " in up("status").err, "nobody was started for that one"
    wait_until(lambda: "s behind" not in up("status").err, "the tail that woke up")


def test_a_standby_is_at_work_within_seconds_and_nobody_needs_to_type(
    run: Running, up: Shell, wait_until: Wait, started: Started
) -> None:
    started(Beside(up, "standby"), ["run", *VIEWS])
    wait_until(lambda: all(row["tails"] == 2 for row in views(up).values()), "the standby")
    keys = [f"standby-{number}" for number in range(8)]
    with hung(run.part("tail")):
        for key in keys:
            assert up("send", "AddItem", TEA.format(key)).code == 0
        wait_until(lambda: all(items(up, key) == 2 for key in keys), "the standby to take over")
        wait_until(lambda: "s behind" not in up("status").err, "status to be content")


def test_the_twin_whose_place_is_kept_for_long_is_not_replaced_and_status_says_so(
    up: Shell, wait_until: Wait, started: Started
) -> None:
    """The list of projectors is fresh, as it is in the first seconds of every hang: nobody may take its buckets."""
    started(Beside(up, "worker"), ["run", "carts"])
    environment = up._environment | {"PYTHONPATH": f"{ROOT / 'framework'}{os.pathsep}{ROOT}"}
    keys = [f"kept-{number}" for number in range(8)]
    tail = subprocess.Popen([sys.executable, "-m", "tests.cli.hanging_tail"], cwd=up.place, env=environment)
    try:
        wait_until(lambda: all(row["tails"] == 1 for row in views(up).values()), "the tail")
        for key in keys:
            assert up("send", "AddItem", TEA.format(key)).code == 0
        wait_until(lambda: all(items(up, key) == 2 for key in keys), "the tail to fold")
        with hung(psutil.Process(tail.pid)):
            for key in keys:
                assert up("send", "AddItem", TEA.format(key)).code == 0
            wait_until(lambda: "although 1 tail is at work: it catches up, was stopped" in up("status").err, "status")
            assert all(row["lag"] > 0 and row["behind"] > 5 for row in views(up).values())
            started(Beside(up, "standby"), ["run", *VIEWS])
            wait_until(lambda: any(items(up, key) == 4 for key in keys), "the other tail to fold its share")
            assert not all(items(up, key) == 4 for key in keys)
            wait_until(lambda: "although 2 tails are at work" in up("status").err, "both to be counted")
        wait_until(lambda: all(items(up, key) == 4 for key in keys), "both to fold on")
    finally:
        tail.terminate()
        tail.wait(240.0)


def test_a_view_that_cannot_be_read_keeps_status_from_no_other(run: Running, up: Shell, wait_until: Wait) -> None:
    assert up("send", "AddItem", TEA.format("read")).code == 0
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
