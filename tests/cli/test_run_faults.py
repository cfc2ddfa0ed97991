"""`leftfold run` when things die under it: its parts, itself, and the servers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from leftfold.local import kill, restart
from tests.cli.shell import Shell

pytestmark = pytest.mark.servers

Wait = Callable[[Callable[[], object], str], None]
TEA = '{{"cart_id": "{}", "product_id": "tea", "quantity": 2, "price": "3.20"}}'


class Running:
    """`leftfold run --plain-logs` with its parts."""

    def __init__(self, shell: Shell, *options: str) -> None:
        self.shell, self.process = shell, shell.start(["run", "--plain-logs", *options])

    def parts(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def part(self, name: str) -> psutil.Process:
        return next(p for p in self.parts() if f"--name={name}" in p.cmdline())

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.shell.said()))


@pytest.fixture
def running(up: Shell, wait_until: Wait) -> Iterator[Running]:
    """A run that serves and follows."""
    run = Running(up)
    wait_until(lambda: run.count(" serving ") and run.count(" following "), "the worker and the tail")
    yield run
    run.process.terminate()
    run.process.wait(240.0)


def test_ctrl_c_stops_all_parts_in_order(running: Running) -> None:
    parts = running.parts()
    assert len(parts) == 2
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(240.0) == 130
    assert psutil.wait_procs(parts, timeout=240.0)[1] == []
    assert "killed" not in running.shell.said()
    assert running.shell.said().splitlines()[-1].endswith("stopped")


def test_sigterm_is_no_failure(running: Running) -> None:
    running.process.terminate()
    assert running.process.wait(240.0) == 0


@pytest.mark.faults
def test_a_killed_worker_is_started_again_and_answers(running: Running, wait_until: Wait) -> None:
    running.part("carts").kill()
    wait_until(lambda: running.count(" serving ") == 2, "the new worker")
    assert "carts        restarting  exit=SIGKILL" in running.shell.said()
    assert running.shell("send", "AddItem", TEA.format("killed")).code == 0


@pytest.mark.faults
def test_killed_itself_it_leaves_no_orphans(running: Running) -> None:
    parts = running.parts()
    running.process.kill()
    running.process.wait()
    assert psutil.wait_procs(parts, timeout=240.0)[1] == []


def test_a_password_is_on_no_command_line_but_the_one_it_was_typed_on(up: Shell, wait_until: Wait) -> None:
    address = json.loads((up.place / ".leftfold" / "servers.json").read_text("utf-8"))["redis"]
    with redis.Redis.from_url(address) as server:
        server.acl_setuser(
            "guest", enabled=True, passwords=["+canary"], keys=["*"], channels=["*"], categories=["+@all"]
        )
    run = Running(up, f"--redis=redis://guest:canary@{address.rpartition('@')[2]}")
    try:
        wait_until(lambda: run.count(" following "), "the tail, logged in")
        assert len(run.parts()) == 2
        assert not [p.cmdline() for p in run.parts() if "canary" in " ".join(p.cmdline())]
        assert "canary" not in up.said()
    finally:
        run.process.terminate()
        run.process.wait(240.0)


@pytest.mark.faults
def test_redis_away_for_a_while_is_told_once_and_waited_for(running: Running, wait_until: Wait) -> None:
    data = running.shell.place / ".leftfold"
    kill(data, "redis")
    wait_until(lambda: running.count(r"tail +waiting"), "the tail's complaint")
    restart(data, "redis")
    wait_until(lambda: running.count(r"tail +going on"), "the tail")
    assert running.count(r"tail +waiting") == 1
    assert running.count("restarting") == 0
    _is_seen(running.shell, "redis")


@pytest.mark.slow
@pytest.mark.faults
def test_kafka_away_for_a_while_is_waited_for_without_a_flood(running: Running, wait_until: Wait) -> None:
    data = running.shell.place / ".leftfold"
    kill(data, "kafka")
    wait_until(lambda: running.count(r"tail +waiting"), "the tail's complaint")
    restart(data, "kafka")
    wait_until(lambda: running.count(r"tail +going on"), "the tail")
    _is_seen(running.shell, "kafka")
    assert len(running.shell.said().splitlines()) < 20, running.shell.said()


def _is_seen(shell: Shell, cart: str) -> None:
    """A command is decided and its event folded, within what a new user has patience for."""
    sent = shell("send", "AddItem", TEA.format(cart), "--timeout", "40")
    assert sent.code == 0, sent.err
    position = sent.out.rsplit("position ", 1)[1].strip()
    row = shell("get", "cart_summary", cart, "--after", position, "--timeout", "20")
    assert row.code == 0, row.err


@pytest.mark.faults
def test_more_workers_share_the_partitions(up: Shell, wait_until: Wait) -> None:
    process = up.start(["run", "carts", "--workers", "2", "--plain-logs"])
    try:
        wait_until(lambda: {"carts.1", "carts.2"} <= set(re.findall(r"(\S+) +serving", up.said())), "two workers")
        wait_until(lambda: "partitions=0-3" not in up.said().rstrip().splitlines()[-1], "a shared group")
    finally:
        process.terminate()
        process.wait(240.0)


def test_a_topic_that_does_not_fit_stops_everything_with_78(up: Shell, tmp_path: Path) -> None:
    file = up.place / "shop" / "services" / "carts" / "app.py"
    # Python takes bytecode for that of a file with the same size and the same second.
    before = file.read_text("utf-8")
    file.write_text(before.replace("partitions=4", "partitions=16"), "utf-8")
    try:
        told = up("run")
    finally:
        file.write_text(before, "utf-8")
    assert told.code == 78
    assert "has 4 partitions, but app shop says partitions=16" in told.err


def test_a_name_that_is_neither_decider_nor_view_is_refused(up: Shell) -> None:
    told = up("run", "cart_sumary")
    assert told.code == 2
    assert "did you mean cart_summary" in told.err


def test_dev_uses_servers_that_run_already_and_leaves_them(up: Shell) -> None:
    process = up.start(["dev", "--plain-logs"])
    try:
        up.wait_until(process, lambda said: " serving " in said)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(240.0) == 130
    assert "servers were there" in up.said()
    assert up("status").code == 0
