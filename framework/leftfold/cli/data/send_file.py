"""Commands from a file, one JSON object a line: many are under way at once, answers come in order."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import repeat
from pathlib import Path
from typing import IO, Any, NamedTuple

from leftfold.cli.data.send import again_line, command_class, compose, read_object
from leftfold.client.commands import Client
from leftfold.engine.processing.command_wire import command_id, nack
from leftfold.engine.progress import Stopwatch
from leftfold.errors import InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.model.app import App
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from leftfold.runtime.console import amount, emit, note, shown
from leftfold.runtime.project import Usage

__all__ = ["SHAPE", "send_lines"]

SHAPE = '{"command": "AddItem", "id": "till-4/2041", "fields": {...}}'
_ERRORS = "surrogateescape"
"""How bytes that are no UTF-8 are read, so that their line is refused and those before it are answered."""
_KNOWN = ("command", "id", "expected_version", "fields")


class _Line(NamedTuple):
    """One parsed line of the file; `has_id`: it names its id, so that it can be sent again as it is."""

    number: int
    command: Command
    id: str
    expected_version: int | None
    has_id: bool


class _Lines:
    """Iterates over the lines of a file up to the first wrong one.

    `trouble` is that line's error; `have_ids` is whether all lines so far name their ids.
    """

    def __init__(self, app: App, file: IO[str]) -> None:
        self._app, self._file = app, file
        self.trouble: LeftfoldError | None = None
        self.have_ids = True

    def __iter__(self) -> Iterator[_Line]:
        for number, text in enumerate(self._file, 1):
            if text.strip():
                try:
                    line = self._read(number, text)
                except Usage as error:
                    self.trouble = Usage("\n".join(f"line {number}: {part}" for part in str(error).splitlines()))
                    return
                self.have_ids &= line.has_id
                yield line

    def _read(self, number: int, text: str) -> _Line:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Usage("it is no UTF-8") from error
        found = read_object(text.strip(), f"a line looks like {SHAPE}")
        for field in found:
            if field not in _KNOWN:
                raise Usage(f"there is no {field!r} in a line, which looks like {SHAPE}")
        name, id_, expected = found.get("command"), found.get("id", ""), found.get("expected_version")
        if not isinstance(name, str) or not isinstance(id_, str) or not isinstance(found.get("fields"), dict):
            raise Usage(f"`command` and `id` are texts and `fields` is an object: {SHAPE}")
        if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool) or expected < 0):
            raise Usage(
                f"expected_version is {json.dumps(expected, default=str)}, and must be a whole number from 0 on"
            )
        command, _ = compose(command_class(self._app, name), json.dumps(found["fields"], default=str), id_=id_)
        return _Line(number, command, id_ or command_id(), expected, bool(id_))


def send_lines(
    client: Client, app: App, source: str, kafka: str | None = None, *, window: int, timeout: float, as_json: bool
) -> int:
    """Sends the commands of a file, `-` for standard input, and reports each line; returns the exit code.

    Args:
        kafka: the value of `--kafka`, for the lines that send a command again.

    Raises:
        Usage: the file cannot be read, or a line of it is no command; the lines before it are answered first.
        InfrastructureError: there is no broker or no such topic.
    """
    try:
        file: Any = sys.stdin if source == "-" else Path(source).open(encoding="utf-8")  # noqa: SIM115  # closed below
    except OSError as error:
        raise Usage(f"{source} cannot be read: {error.strerror}") from error
    if isinstance(file, TextIOWrapper):
        file.reconfigure(errors=_ERRORS)
    with file:
        lines = _Lines(app, file)
        counts: Counter[str] = Counter()
        with shown("send") as report:
            watch = Stopwatch(report)
            watch.begin("commands", _count(source))
            for line, outcome in _sent(client, lines, window, timeout):
                counts[_report_line(line, outcome, kafka, as_json=as_json)] += 1
                watch.tell(1)
            watch.end()
    return _ended(counts, lines)


def _sent(
    client: Client, lines: _Lines, window: int, timeout: float
) -> Iterator[tuple[_Line, Receipt | LeftfoldError]]:
    under_way: deque[_Line] = deque()

    def commands() -> Iterator[Command]:
        for line in lines:
            under_way.append(line)
            yield line.command

    # The client takes a command before its id and its expected version.
    ids = (under_way[-1].id for _ in repeat(None))
    versions = (under_way[-1].expected_version for _ in repeat(None))
    for outcome in client.send_each(commands(), window=window, ids=ids, expected_versions=versions, timeout=timeout):
        yield under_way.popleft(), outcome


def _report_line(line: _Line, outcome: Receipt | LeftfoldError, kafka: str | None, *, as_json: bool) -> str:
    """Prints the outcome of a line and returns the word under which it is counted."""
    head = {"line": line.number, "id": line.id}
    if not isinstance(outcome, LeftfoldError):
        if as_json:
            offsets = outcome.position.offsets
            emit({**head, "version": outcome.version, "events": outcome.events, "position": offsets})
        return "accepted"
    is_unanswered = isinstance(outcome, (OutcomeUnknown, InfrastructureError))
    why = outcome.why if isinstance(outcome, OutcomeUnknown) else str(outcome)
    if as_json:
        emit({**head, **nack(outcome)})
    else:
        note(f"line {line.number}: {type(outcome).__name__}: {why}")
    if is_unanswered and not line.has_id:
        again = again_line(line.command, line.id, line.expected_version, kafka)
        note(f"line {line.number} has no id; ask again, safely: {again}")
    return "unanswered" if is_unanswered else "refused"


def _ended(counts: Counter[str], lines: _Lines) -> int:
    words = ", ".join(f"{counts[what]:,} {what}" for what in ("accepted", "refused", "unanswered") if counts[what])
    note(f"{amount(counts.total(), 'command')}: {words or 'none'}")
    if not lines.have_ids and (counts["unanswered"] or lines.trouble is not None):
        note("do not send the whole file again: lines without an id would be decided twice; send what is not answered")
    elif counts["unanswered"]:
        note("send the same file again: what was decided is answered as before")
    if lines.trouble is not None:
        raise lines.trouble
    return 75 if counts["unanswered"] else 1 if counts["refused"] else 0


def _count(source: str) -> int:
    """How many commands are in a file, for a progress bar; 0 where there is none, or it can be read once only."""
    if source == "-" or not Path(source).is_file() or not sys.stderr.isatty():
        return 0
    with Path(source).open("rb") as file:
        return sum(1 for line in file if line.strip())
