"""The supervisor, with small processes of its own: restarts, the end of everything, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leftfold.runtime.supervisor import Backoff, Part, PartProcess, Supervisor
from tests.cli.shell import ROOT
from tests.local.conftest import runs
from tests.waiting import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "framework")}
# Appends its pid to a file, then waits for SIGTERM, which it hears by then, or for the end of its standard input, which
# it must notice itself.
# Signals that come just before a call that waits are heard behind it only, so that one must be short.
PATIENT = """
import os, select, sys, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\n")
while not select.select([sys.stdin], [], [], 0.1)[0]: pass
"""
STUBBORN = PATIENT.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
MISTAKEN = f"{PATIENT.partition('while')[0]}sys.exit(78)"


class Running:
    """A supervisor in a thread, with its reports."""

    def __init__(self, tmp_path: Path, *scripts: str, grace: float = 240.0) -> None:
        self.files = [tmp_path / f"part{n}" for n in range(len(scripts))]
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self.stop = threading.Event()
        parts = [
            Part(file.name, (sys.executable, "-c", script, str(file)))
            for file, script in zip(self.files, scripts, strict=True)
        ]
        supervisor = Supervisor(parts, stop=self.stop, grace=grace, report=lambda *line: self.reports.append(line))
        self._pool = ThreadPoolExecutor(1)
        self.code: Future[int] = self._pool.submit(supervisor.run)

    def pids(self, number: int) -> list[int]:
        """Every process that this part has been so far."""
        file = self.files[number]
        return [int(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def close(self) -> None:
        """Stops it."""
        self.stop.set()
        self._pool.shutdown()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts supervisors that end with the test."""
    all_of_them: list[Running] = []

    def run(*scripts: str, grace: float = 240.0) -> Running:
        all_of_them.append(Running(tmp_path, *scripts, grace=grace))
        return all_of_them[-1]

    yield run
    for one in all_of_them:
        one.close()


def test_a_killed_part_is_started_again_and_the_others_are_left_alone(running: Callable[..., Running]) -> None:
    two = running(PATIENT, PATIENT)
    wait_until(lambda: two.pids(0) and two.pids(1), "both parts")
    os.kill(two.pids(0)[0], signal.SIGKILL)
    wait_until(lambda: len(two.pids(0)) == 2, "a new process of the killed part")
    assert len(two.pids(1)) == 1
    assert [(what, details["exit"]) for what, details in two.reports] == [("restarting", "SIGKILL")]


def test_a_part_whose_configuration_is_wrong_stops_everything(running: Callable[..., Running]) -> None:
    two = running(PATIENT, MISTAKEN)
    assert two.code.result(240.0) == 78
    assert len(two.pids(1)) == 1
    assert not any(map(runs, two.pids(0)))


def test_asked_to_stop_it_lets_its_parts_leave_in_order(running: Callable[..., Running]) -> None:
    one = running(PATIENT)
    wait_until(lambda: one.pids(0), "the part")
    one.stop.set()
    assert one.code.result(240.0) == 0
    assert not runs(one.pids(0)[0])
    assert one.reports == []


def test_a_part_that_does_not_leave_is_killed(running: Callable[..., Running]) -> None:
    one = running(STUBBORN, grace=0.2)
    wait_until(lambda: one.pids(0), "the part")
    one.stop.set()
    assert one.code.result(240.0) == 0
    assert not runs(one.pids(0)[0])
    assert [what for what, _ in one.reports] == ["killed"]


def test_pauses_double_up_to_five_seconds_and_shorten_after_good_health() -> None:
    backoff = Backoff()
    assert [backoff.pause(0.0) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [backoff.pause(11.0), backoff.pause(0.0)] == [0.2, 0.4]


def test_a_restart_takes_one_pause() -> None:
    child = PartProcess(Part("short", (sys.executable, "-c", "")))
    for pause in (0.2, 0.4, 0.8):
        child.start()
        assert child.process is not None
        child.process.wait(240.0)
        before = child._started = time.monotonic()  # a slow start would count as good health
        assert child.ended() == 0
        assert before + pause <= child.due <= time.monotonic() + pause


def test_a_process_of_ours_ends_hard_when_it_cannot_leave(tmp_path: Path) -> None:
    """A part whose main thread hangs still ends some seconds after its parent."""
    script = """
import threading, time
from leftfold.cli.run import child_process
child_process._LEAVE_SECONDS = 0.2
child_process.end_with_parent(threading.Event().set)
time.sleep(600)
"""
    hung = subprocess.Popen([sys.executable, "-c", script], env=ENVIRONMENT, stdin=subprocess.PIPE)
    assert hung.stdin is not None
    hung.stdin.close()
    assert hung.wait(240.0) == 75


# Signals come while the main thread holds the lock of the event that they are to set, as it does for some microseconds
# of every `event.wait`. The watcher ends the process once the handler stands before that lock.
SIGNALLED = """
import os, signal, threading
from leftfold.runtime.lifecycle import Stopping, setter
{handler}
handling = threading.Event()

def watch():
    handling.wait()
    if not event._cond.acquire(timeout={seconds}):
        os._exit(3)
    event._cond.release()

threading.Thread(target=watch, daemon=True).start()
with event._cond:
    handling.set()
    signal.raise_signal(signal.SIGTERM)
event.wait()
"""


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        ("event = Stopping().event", 0),
        ("event = threading.Event(); stop = setter(event); signal.signal(signal.SIGTERM, lambda *_: stop())", 0),
        ("event = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: event.set())", 3),
    ],
    ids=["run", "part", "the twin that sets it itself"],
)
def test_a_signal_stops_whatever_the_main_thread_was_doing(handler: str, code: int) -> None:
    script = SIGNALLED.format(handler=handler, seconds=2.0 if code else 60.0)  # the twin never gets the lock
    process = subprocess.Popen([sys.executable, "-c", script], env=ENVIRONMENT)
    assert process.wait(240.0) == code


def test_a_signal_is_known_before_its_event_is_set() -> None:
    """Ctrl-C ends servers that are being made, too, whose failure must not be taken for one of theirs."""
    script = """
import os, signal
from leftfold.runtime.lifecycle import Stopping

stopping = Stopping()
with stopping.event._cond:  # no thread can set it
    before = stopping.is_signalled
    signal.raise_signal(signal.SIGINT)
    os._exit(0 if (before, stopping.is_signalled, stopping.event.is_set()) == (False, True, False) else 1)
"""
    assert subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=False).returncode == 0


def test_a_part_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    """A machine without another process to give is no reason to end those that run."""
    program = tmp_path / "part"
    reports: list[tuple[str, Mapping[str, Any]]] = []
    stop = threading.Event()
    supervisor = Supervisor([Part("late", (str(program),))], stop=stop, report=lambda *line: reports.append(line))
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(supervisor.run)
        try:
            wait_until(lambda: len(reports) >= 2, lambda: str(reports))
            assert {what for what, _ in reports} == {"not started"}
            program.write_text("#!/bin/sh\nexit 78\n")
            program.chmod(0o755)
            assert code.result(240.0) == 78
        finally:
            stop.set()
    assert str(program) in reports[0][1]["why"]


HUNG_UP = pytest.mark.parametrize(
    ("before", "stops"), [("SIG_DFL", True), ("SIG_IGN", False)], ids=["a terminal", "nohup"]
)


@HUNG_UP
def test_a_closed_terminal_drains_a_gateway_but_not_one_under_nohup(before: str, stops: bool) -> None:
    script = f"""
import os, signal
signal.signal(signal.SIGHUP, signal.{before})
from fastapi import FastAPI
from leftfold.cli.run.serve import _run
from leftfold.http import GatewayServer

class Hung(GatewayServer):
    async def startup(self, sockets=None):
        signal.raise_signal(signal.SIGHUP)
        os._exit(0 if self.should_exit is {stops} else 1)

_run(Hung(FastAPI()))
"""
    assert subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=False).returncode == 0


@HUNG_UP
def test_a_closed_terminal_ends_a_run_but_not_one_under_nohup(before: str, stops: bool) -> None:
    script = f"""
import os, signal
signal.signal(signal.SIGHUP, signal.{before})
from leftfold.runtime.lifecycle import Stopping

stopping = Stopping()
signal.raise_signal(signal.SIGHUP)
os._exit(0 if stopping.is_signalled is {stops} else 1)
"""
    assert subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=False).returncode == 0
