"""Log lines: readable on a terminal, JSON elsewhere, trouble reported once, and no stack of Java's after Ctrl-C."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from leftfold import InfrastructureError
from leftfold.ports.instruments import SEND, recorded_by
from leftfold.runtime.lifecycle import Outage
from leftfold.runtime.logging import open_report
from leftfold.runtime.workers.query_workers import cancelling

FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Leaves the standard library's logging as it was."""
    names = ("leftfold", "aiokafka", "faust", "mode", "nicegui", "opentelemetry")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate


def test_lines_for_people_hold_time_part_event_and_details() -> None:
    out = io.StringIO()
    open_report("baskets", as_json=False, stream=out)("serving", {"topic": "t", "partitions": [0, 1, 2, 5]})
    clock, part, rest = out.getvalue().split(maxsplit=2)
    assert len(clock) == len("10:00:00")
    assert (part, rest) == ("baskets", "serving  topic=t  partitions=0-2,5\n")


def test_lines_for_machines_and_for_what_is_no_terminal_are_one_object_each() -> None:
    out = io.StringIO()
    report = open_report("baskets", stream=out)
    report("serving", {"partitions": [0, 1]})
    report("view stopped", {"view": "v"})
    # No name of a detail ends the part that reports it.
    report("serving", {"event": "e", "method_name": "m"})
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {"level": "info", "part": "baskets", "event": "serving", "partitions": [0, 1]}
    assert (second["level"], second["event"]) == ("error", "view stopped")
    assert (third["event"], third["event_"], third["method_name_"]) == ("serving", "e", "m")


@pytest.mark.parametrize("name", ["aiokafka.consumer.group_coordinator", "faust.topics", "mode.timers"])
def test_what_the_driver_of_routers_says_is_a_line_like_any_other(name: str) -> None:
    out = io.StringIO()
    open_report("checkout.router", as_json=True, stream=out)
    logging.getLogger(name).warning("Heartbeat failed for group %s", "g")
    logging.getLogger(name).info("no operator needs this")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "level": "info",
        "part": "checkout.router",
        "event": "Heartbeat failed for group g",
    }


def test_adapters_repeat_themselves_once_in_a_while_only_and_not_when_leaving() -> None:
    out, leaving = io.StringIO(), threading.Event()
    open_report("projector", as_json=False, stream=out, leaving=leaving.is_set)
    log = logging.getLogger("leftfold.kafka")
    for client in ("reader", "admin"):
        log.warning("%s: FAIL [thrd:main]: connection refused", client)
    log.info("reader: GETPID all is well")
    leaving.set()
    log.warning("reader: SESSTMOUT too late to matter")
    (line,) = out.getvalue().splitlines()
    assert line.endswith("projector    reader: FAIL: connection refused")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is full")
def test_a_log_that_cannot_be_written_ends_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for descriptor in (writing, os.open(FULL, os.O_WRONLY)):
        with os.fdopen(descriptor, "wb", 0) as broken, io.TextIOWrapper(broken, write_through=True) as stream:
            open_report("baskets", stream=stream)("serving", {})
            logging.getLogger("leftfold.kafka").warning("reader: FAIL: connection refused")
    logging.getLogger("aiokafka").warning("%d messages", "no number of")
    assert "Message: '%d messages'" in capsys.readouterr().err


def test_an_exception_is_shown_whole() -> None:
    out = io.StringIO()
    try:
        raise ZeroDivisionError("oops")
    except ZeroDivisionError:
        open_report("projector", as_json=False, stream=out)("failed", {"exc_info": True})
    assert "Traceback" in out.getvalue()
    assert out.getvalue().splitlines()[0].endswith("failed")


def test_trouble_is_reported_once_and_its_end_once() -> None:
    result: list[tuple[str, Mapping[str, Any]]] = []
    stop = threading.Event()
    stop.set()
    trouble = Outage(lambda *line: result.append(line), stop)
    for why in ("redis is not reachable", "redis is not reachable", "redis is still not reachable"):
        trouble.pause_after(InfrastructureError(why))
    trouble.report_cause("")
    trouble.report_cause("")
    assert [what for what, _ in result] == ["waiting", "going on"]
    assert result[0][1] == {"why": "redis is not reachable"}


def test_lines_within_a_span_name_its_trace_and_others_none() -> None:
    out = io.StringIO()
    report = open_report("baskets", as_json=True, stream=out)
    with recorded_by(TracerProvider()):
        with SEND.span("baskets.commands") as span:
            report("serving", {})
        report("left", {})
    within, outside = map(json.loads, out.getvalue().splitlines())
    assert f"00-{within['trace_id']}-{within['span_id']}" == span.traceparent[:-3]
    assert not outside.keys() & {"trace_id", "span_id"}


class Context:
    """Spark's context, whose answer takes until the block has ended."""

    def __init__(self) -> None:
        self.leaving, self.cancelled = threading.Event(), False

    @property
    def sparkContext(self) -> Context:  # noqa: N802  # as Spark's session calls it
        return self

    def cancelAllJobs(self) -> None:  # noqa: N802  # as Spark calls it
        self.leaving.wait()
        threading.Event().wait(0.2)  # longer than the end of a block takes that does not wait
        self.cancelled = True


def test_jobs_are_cancelled_before_the_session_may_stop() -> None:
    session, stop = Context(), threading.Event()
    with cancelling(session, stop):
        stop.set()
        session.leaving.set()
    assert session.cancelled
