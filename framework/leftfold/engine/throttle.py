"""Work with a bounded share of one core: it pauses after every batch as long as its share asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.plan import RebuildPlan

__all__ = ["Throttle", "throttled"]

_Runner = Callable[[BulkJob, RebuildPlan, Tell], list[BucketResult]]
_LONGEST = 1.0


class Throttle:
    """Pauses this thread so that the processor time of the whole process stays at a share of the time that passes.

    All of the process counts, not this thread alone: the Kafka client fetches and unpacks in threads of its own.

    Args:
        share: of one core, above 0 and at most 1.
    """

    def __init__(
        self,
        share: float,
        *,
        worked: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share, self._worked, self._clock, self._sleep = share, worked, clock, sleep
        self._spent, self._since = worked(), clock()

    def pause(self) -> None:
        """Sleeps off what was worked too much since the beginning, a second at most at a time."""
        due = self._due()
        if due > 0:
            self._sleep(min(due, _LONGEST))

    def rest(self) -> None:
        """Sleeps off all that was worked too much."""
        while self._due() > 0:
            self.pause()

    def _due(self) -> float:
        return (self._worked() - self._spent) / self._share - (self._clock() - self._since)


def throttled(run: _Runner, throttle: Throttle) -> _Runner:
    """A runner in this thread that pauses after every batch of events."""

    def slowly(job: BulkJob, plan: RebuildPlan, tell: Tell) -> list[BucketResult]:
        def told(count: int) -> None:
            tell(count)
            throttle.pause()

        return run(job, plan, told)

    return slowly
