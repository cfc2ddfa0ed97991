"""What Spark is at ends before Spark does, so that Ctrl-C prints no stack of Java's."""

from __future__ import annotations

import threading

from leftfold.runtime.workers.query_workers import cancelling


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
