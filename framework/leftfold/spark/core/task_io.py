"""What Spark tasks exchange with the driver: items as Arrow, results and errors as lines, and progress."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeAlias, TypeVar
from weakref import finalize

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import AccumulatorParam, SparkContext
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import SparkSession

import leftfold.errors
from leftfold.engine.processing.state_check import PartitionCheck, StateCheck
from leftfold.engine.rebuild.sorted_fold import KeyedUpdate
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.errors import InfrastructureError, LeftfoldError, is_interruption
from leftfold.ports.bulk import BucketResult

__all__ = [
    "ITEM",
    "ITEM_FIELDS",
    "ITEM_ORDER",
    "Address",
    "Batches",
    "ProgressReporter",
    "SkippedValues",
    "arrow_batches",
    "batches_by_size",
    "cause_of",
    "item_batches",
    "items_in",
    "job_errors",
    "line_batches",
    "lines_of",
    "listening",
    "results_of",
    "results_of_pass",
    "rows_in",
    "spark_checks",
]


Batches: TypeAlias = Iterator[pa.RecordBatch]
ITEM = "bucket int, key string, source int, offset long, nth int, body binary, time string"
ITEM_ORDER = ("bucket", "key", "source", "offset", "nth")
ITEM_FIELDS: list[Any] = [
    ("bucket", pa.int32()),
    ("key", pa.string()),
    ("source", pa.int32()),
    ("offset", pa.int64()),
    ("nth", pa.int32()),
    ("body", pa.binary()),
    ("time", pa.string()),
]
_ITEM_ARROW = pa.schema(ITEM_FIELDS)
_LINE_ARROW = pa.schema([("line", pa.string())])
_MANY, _HEAVY = 5_000, 16 << 20
T = TypeVar("T")
R = TypeVar("R", bound=Sequence[Any])


def batches_by_size(items: Iterable[T], size: Callable[[T], int], most: int = _MANY) -> Iterator[list[T]]:
    """Items in lists of at most so many; a list that has reached 16 MB ends.

    Args:
        size: the bytes of an item, about.
    """
    batch, filled = list[T](), 0
    for item in items:
        batch.append(item)
        filled += size(item)
        if len(batch) >= most or filled >= _HEAVY:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def arrow_batches(rows: Iterable[R], schema: pa.Schema, size: Callable[[R], int], most: int = _MANY) -> Batches:
    """Rows as Arrow batches, divided as by `batches_by_size`."""
    for batch in batches_by_size(rows, size, most):
        columns = zip(zip(*batch, strict=True), schema, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(c, field.type) for c, field in columns], schema=schema)


def rows_in(batches: Batches) -> Iterator[tuple[Any, ...]]:
    """The rows in Arrow batches, in their order."""
    return (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))


def item_batches(items: Iterable[KeyedUpdate]) -> Batches:
    """Items as Arrow batches."""
    return arrow_batches(items, _ITEM_ARROW, lambda item: len(item.body))


def items_in(batches: Batches) -> Iterator[KeyedUpdate]:
    """The items in Arrow batches, in their order."""
    return map(KeyedUpdate._make, rows_in(batches))


def line_batches(lines: Iterable[str]) -> Batches:
    """Lines as they come, each in its own batch: the driver collects few."""
    return arrow_batches(((line,) for line in lines), _LINE_ARROW, lambda row: len(row[0]), 1)


_KNOWN = 1000
_NAMED = 5
_SHOWN = 200
_UNNAMED = ""


class SkippedValues:
    """Collects on the driver which events and rows tasks skipped; one that is read again counts once."""

    def __init__(self, spark: SparkSession) -> None:
        context: SparkContext = spark.sparkContext
        self._found = context.accumulator({}, _Places())
        # pyspark would keep it, with all that it holds, for as long as the process lives.
        finalize(self, _accumulatorRegistry.pop, self._found.aid, None)

    def add(self, place: str, field: str) -> None:
        """Adds an event and the field that does not fit its column; called by tasks."""
        self._found.add({place: field})

    def unnamed(self, row: Any) -> None:
        """Adds a row whose key is empty; called by tasks."""
        self._found.add({f"{row!r:.{_SHOWN}}": _UNNAMED})

    @property
    def found(self) -> Mapping[str, str]:
        """The addresses of events with their fields, and rows without a key, of tasks that have ended.

        1,000 at most.
        """
        return dict(self._found.value)

    def __str__(self) -> str:
        """All of them in a line, '' when there are none."""
        found = sorted(self.found.items())
        events = [f"{place} ({field})" for place, field in found if field != _UNNAMED]
        rows = [row for row, field in found if field == _UNNAMED]
        many = " or more" if len(found) == _KNOWN else ""
        sentences = (
            _sentence(events, f"{many} event", "a value does not fit its column"),
            _sentence(rows, f"{many} row", "a row key may not be empty"),
        )
        return "; ".join(filter(None, sentences))


def _sentence(found: Sequence[str], what: str, why: str) -> str:
    if not found:
        return ""
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    count = f"{len(found):,}{what}{'' if len(found) == 1 else 's'}"
    return f"{count} passed over, since {why}: {', '.join(found[:_NAMED])}{more}"


class _Places(AccumulatorParam[dict[str, str]]):
    def zero(self, value: dict[str, str]) -> dict[str, str]:
        return {}

    def addInPlace(self, value1: dict[str, str], value2: dict[str, str]) -> dict[str, str]:  # noqa: N802  # pyspark's
        for place, field in value2.items():
            if len(value1) < _KNOWN:
                value1[place] = field
        return value1


_FAILED = "!"
_OURS = re.compile(r"leftfold\.errors\.(\w+): (.*)")
_DIED = re.compile(r"OutOfMemoryError|SparkContext was shut down|stopped SparkContext")
_RAISED = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b.*")


def lines_of(results: Callable[[], Iterable[BucketResult]]) -> Iterator[str]:
    """Results as lines; a Leftfold error becomes the last line, so that no Java stack trace hides it."""
    try:
        for result in results():
            yield result.to_json()
    except LeftfoldError as error:
        yield _FAILED + json.dumps([type(error).__name__, str(error)])


def results_of(lines: Iterable[str]) -> list[BucketResult]:
    """The results in the lines of all tasks.

    Raises:
        LeftfoldError: an error that a task raised.
    """
    found = []
    for line in lines:
        if line.startswith(_FAILED):
            name, message = json.loads(line[1:])
            raise getattr(leftfold.errors, name, InfrastructureError)(message)
        found.append(BucketResult.from_json(line))
    return found


def results_of_pass(lines: Iterable[str], jobs: int) -> list[list[BucketResult]]:
    """The results of each job of a pass; a line begins with the job's number.

    Raises:
        LeftfoldError: an error that a task raised.
    """
    by_job: list[list[str]] = [[] for _ in range(jobs)]
    for line in lines:
        number, _, rest = line.partition(" ")
        by_job[int(number)].append(rest)
    return [results_of(one) for one in by_job]


def cause_of(error: Exception) -> LeftfoldError:
    """The error of an executor, without the Java stack traces around it.

    Raises:
        KeyboardInterrupt: the cause was Ctrl-C, after which a connection to the JVM may fail on the way out.
    """
    if is_interruption(error):
        raise KeyboardInterrupt
    text = str(error)
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        kind: type[LeftfoldError] = getattr(leftfold.errors, name, InfrastructureError)
        return kind(message)
    is_lost = isinstance(error, ConnectionError | EOFError | Py4JError) and not isinstance(error, Py4JJavaError)
    if is_lost or _DIED.search(text):
        return InfrastructureError(
            "Spark has died or run out of memory; ask for less, or give it more by LEFTFOLD_SPARK_MEMORY, as in 4g"
        )
    raised = [line.strip() for line in text.splitlines() if _RAISED.fullmatch(line.strip())]
    return InfrastructureError(f"Spark could not do it: {(raised or [text or repr(error)])[-1][:500]}")


@contextmanager
def job_errors() -> Iterator[None]:
    """Raises the errors of executors in the block as `cause_of` gives them."""
    try:
        yield
    except LeftfoldError:
        raise
    except Exception as error:
        raise cause_of(error) from error


Address = tuple[str, int]
_EVERY = 0.2
"""Seconds between two progress datagrams."""


@contextmanager
def listening(spark: SparkSession, tell: Callable[[int], None]) -> Iterator[Address]:
    """Passes on the progress counts that arrive during the block; a lost one is only missing from a progress bar."""
    host = spark.conf.get("spark.driver.host", None) or "127.0.0.1"
    bind = spark.conf.get("spark.driver.bindAddress", None) or ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((bind, 0))
        port = receiver.getsockname()[1]
        here = ("127.0.0.1" if bind in ("", "0.0.0.0") else bind, port)  # noqa: S104  # compared, not bound

        def listen() -> None:
            # Ctrl-C may close the socket while the thread starts.
            with suppress(OSError):
                while count := receiver.recv(32):
                    if count.isdigit():
                        tell(int(count))

        thread = threading.Thread(target=listen, name="progress", daemon=True)
        try:
            thread.start()
            yield host, port
        finally:
            # An empty datagram to itself ends the thread, after everything that has arrived.
            while thread.is_alive():
                receiver.sendto(b"", here)
                thread.join(_EVERY)


class ProgressReporter:
    """Sends progress counts to the driver, five times a second at most, and the rest when it is closed."""

    def __init__(self, address: Address) -> None:
        self._address, self._count, self._sent = address, 0, time.monotonic()
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def __call__(self, more: int) -> None:
        """Counts more events."""
        self._count += more
        if time.monotonic() - self._sent >= _EVERY:
            self._send()

    def close(self) -> None:
        """Sends the rest."""
        self._send()
        self._sender.close()

    def _send(self) -> None:
        with suppress(OSError):  # a task does not fail because its progress cannot be sent
            self._sender.sendto(b"%d" % self._count, self._address)
        self._count, self._sent = 0, time.monotonic()


def spark_checks(spark: SparkSession) -> Callable[[StateCheck, Callable[[int], None]], list[PartitionCheck]]:
    """Runs the state checks of all partitions of a category on a session."""

    def run(check: StateCheck, tell: Callable[[int], None]) -> list[PartitionCheck]:
        with listening(spark, tell) as address:

            def each(batches: Batches) -> Batches:
                tuned_gc()
                with closing(ProgressReporter(address)) as teller:
                    for batch in batches:
                        for number in batch.column(0).to_pylist():
                            line = check.run(int(number or 0), teller).to_json()
                            yield pa.RecordBatch.from_pydict({"line": [line]})

            count = len(check.partitions)
            with job_errors():
                rows = spark.range(0, count, 1, count).mapInArrow(each, "line string").collect()
        return [PartitionCheck.from_json(row.line) for row in rows]

    return run
