"""What a task hands back to the driver: results as lines, and our own errors as what they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from py4j.protocol import Py4JError, Py4JJavaError

import leftfold.errors
from leftfold.engine.bulk_result import BucketResult
from leftfold.errors import InfrastructureError, LeftfoldError, is_interruption

__all__ = ["cause_of", "lines_of", "results_of", "results_of_pass"]

_FAILED = "!"
_OURS = re.compile(r"leftfold\.errors\.(\w+): (.*)")
_DIED = re.compile(r"OutOfMemoryError|SparkContext was shut down|stopped SparkContext")
_RAISED = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b.*")


def lines_of(results: Callable[[], Iterable[BucketResult]]) -> Iterator[str]:
    """Each result as a line; an error of ours as the last line, so that no Java stack trace buries it."""
    try:
        for result in results():
            yield result.to_json()
    except LeftfoldError as error:
        yield _FAILED + json.dumps([type(error).__name__, str(error)])


def results_of(lines: Iterable[str]) -> list[BucketResult]:
    """The results behind the lines of all tasks.

    Raises:
        LeftfoldError: what a task raised.
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
        LeftfoldError: what a task raised.
    """
    told: list[list[str]] = [[] for _ in range(jobs)]
    for line in lines:
        number, _, rest = line.partition(" ")
        told[int(number)].append(rest)
    return [results_of(one) for one in told]


def cause_of(error: Exception) -> LeftfoldError:
    """What went wrong in an executor, without the Java stack traces around it.

    Raises:
        KeyboardInterrupt: that was Ctrl-C, behind which a connection to the JVM may fail on the way out.
    """
    if is_interruption(error):
        raise KeyboardInterrupt
    text = str(error)
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        kind: type[LeftfoldError] = getattr(leftfold.errors, name, InfrastructureError)
        return kind(message)
    gone = isinstance(error, ConnectionError | EOFError | Py4JError) and not isinstance(error, Py4JJavaError)
    if gone or _DIED.search(text):
        return InfrastructureError(
            "Spark has died or run out of memory; ask for less, or give it more by LEFTFOLD_SPARK_MEMORY, as in 4g"
        )
    raised = [line.strip() for line in text.splitlines() if _RAISED.fullmatch(line.strip())]
    return InfrastructureError(f"Spark could not do it: {(raised or [text or repr(error)])[-1][:500]}")
