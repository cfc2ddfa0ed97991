"""A transaction that does not fit is not tried again as it was."""

from __future__ import annotations

from leftfold.kafka.pace import Pace


def test_it_halves_down_to_one_and_waits_longer_each_time() -> None:
    pace = Pace(4000)
    waits = [pace.failed() for _ in range(14)]
    assert (pace.limit, pace.failures) == (1, 14)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


def test_it_grows_in_steps_so_that_most_tries_fit() -> None:
    pace = Pace(4000)
    pace.failed()
    pace.committed()
    assert (pace.limit, pace.failures) == (2125, 0)
    for _ in range(100):
        pace.committed()
    assert pace.limit == 4000
