"""Structured logs of long-running processes: one line per log event, readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, TextIO
from zlib import crc32

import structlog

from leftfold.ports.instruments import traceparent
from leftfold.ports.protocols import Report
from leftfold.safety import printable, veiled

__all__ = ["open_report"]

Fields = MutableMapping[str, Any]

_WARN = frozenset({
    "a command is too slow", "a partition stands still", "answers dropped", "answers withheld", "commands begin again",
    "commands lost to retention", "commit outcome unknown", "dead letters", "decide failed", "event dead-lettered",
    "events passed over", "fold changed", "foreign state", "generation lost", "killed", "not left clean", "parked",
    "react failed", "refused in folding", "restarting", "sender of answers replaced", "transaction aborted", "waiting",
})  # fmt: skip
_TAKEN = ("event", "method_name")
"""Names of structlog's own arguments: a detail of that name would raise an error in the reporting process."""
_FAIL = frozenset({"failed", "view stopped"})
_PART_COLOURS = (32, 33, 34, 35, 36, 92, 94, 95, 96)
_LEVEL_COLOURS = {"warning": 33, "error": 31}
_WIDTH = 12
_REPEAT_SECONDS = 30.0
_THREADS = re.compile(r" \[[^\]]{0,200}\]")


def open_report(
    part: str, *, as_json: bool | None = None, stream: TextIO | None = None, leaving: Callable[[], bool] = lambda: False
) -> Report:
    """A callback that logs the events of one process; messages of the adapters' loggers are logged the same way.

    Args:
        part: the process's name in each line, such as `baskets`. as_json: None = unless the stream is a terminal.
        stream: None = standard error.
        leaving: whether the process is stopping; the adapters' messages, about lost connections, are then dropped.
    """
    out = stream if stream is not None else sys.stderr
    readable = out.isatty() if as_json is None else not as_json
    render = _TerminalRenderer(colour=out.isatty()) if readable else structlog.processors.JSONRenderer(default=str)
    log = structlog.wrap_logger(
        structlog.WriteLogger(out),
        processors=[
            structlog.processors.add_log_level,
            _traced,
            _stamp,
            structlog.processors.format_exc_info,
            _veil,
            render,
        ],
        wrapper_class=structlog.BoundLogger,
        part=part,
    )

    def report(what: str, details: Mapping[str, Any]) -> None:
        level = "error" if what in _FAIL else "warning" if what in _WARN or "exc_info" in details else "info"
        fields = {f"{name}_" if name in _TAKEN else name: value for name, value in details.items()}
        # A full disk, or a pipe or terminal that is closed, must not end the process that reports.
        with suppress(OSError, ValueError):
            getattr(log, level)(what, **fields)

    handler = _Handler(report, leaving)
    # Faust with its aiokafka and mode, nicegui and opentelemetry have no handler: Python would print bare lines.
    for name in ("leftfold", "aiokafka", "faust", "mode", "nicegui", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    return report


class _Handler(logging.Handler):
    """A handler that forwards records of `logging` to a report; messages with the same beginning once in 30 s.

    A record with `details` (its `extra`) is reported with these each time, under the words before its colon.
    """

    def __init__(self, report: Report, leaving: Callable[[], bool]) -> None:
        super().__init__(logging.WARNING)
        self._report, self._leaving = report, leaving
        self._seen: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._forward(record)
        except Exception:  # noqa: BLE001  # as every handler of `logging`: a message that is wrong ends no driver
            self.handleError(record)

    def _forward(self, record: logging.LogRecord) -> None:
        if details := getattr(record, "details", None):
            self._report(str(record.msg).partition(":")[0], details)
            return
        line, now = _THREADS.sub("", record.getMessage()), time.monotonic()
        if record.name == "nicegui":
            line = f"nicegui: {line}"  # visitors of a console may have it log what they like
        # "reader: FAIL: ...": every client of the process logs the same lost broker.
        kind = line.partition(": ")[2].partition(" ")[0] or line
        if self._leaving() or now - self._seen.get(kind, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return
        self._seen = {k: at for k, at in self._seen.items() if now - at < _REPEAT_SECONDS} | {kind: now}
        self._report(line, {"exc_info": record.exc_info} if record.exc_info else {})


def _stamp(logger: Any, method: str, fields: Fields) -> Fields:
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), **fields}


def _traced(logger: Any, method: str, fields: Fields) -> Fields:
    """Adds `trace_id` and `span_id` while a span is active, in the names and forms of OpenTelemetry's logs."""
    if not (context := traceparent()):
        return fields
    _, trace_id, span_id, _ = context.split("-")
    return {**fields, "trace_id": trace_id, "span_id": span_id}


def _veil(logger: Any, method: str, fields: Fields) -> Fields:
    """Masks secrets in the fields: messages of drivers and of users' code may contain addresses with logins."""
    return {name: veiled(value) if isinstance(value, str) else value for name, value in fields.items()}


class _TerminalRenderer:
    """Renders a log line for a terminal: local time, process, log event, then its details."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, logger: Any, method: str, fields: Fields) -> str:
        at = datetime.fromisoformat(fields.pop("time")).astimezone().strftime("%H:%M:%S")
        part, what, level = str(fields.pop("part")), printable(str(fields.pop("event"))), fields.pop("level")
        # Indented, so that a message of several lines cannot look like log lines.
        trace = [f"  {printable(line)}" for line in fields.pop("exception", "").split("\n") if line]
        details = "".join(
            f"  {self._painted(2, f'{name}=')}{printable(_shown(value))}" for name, value in fields.items()
        )
        painted_part = self._painted(_PART_COLOURS[crc32(part.encode()) % len(_PART_COLOURS)], f"{part:<{_WIDTH}}")
        what = self._painted(_LEVEL_COLOURS.get(level, 0), what)
        return "\n".join([f"{self._painted(2, at)} {painted_part} {what}{details}", *trace])

    def _painted(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, int) for v in value):
        return ",".join(_ranges(value)) or "none"
    return str(value)


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Numbers as ranges: `[0, 1, 2, 5]` as `0-2` and `5`."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])]
    return [f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs]
