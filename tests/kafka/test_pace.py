"""A transaction is planned by time: what does not fit is not tried again as it was."""

from __future__ import annotations

import pytest

from leftfold.kafka.worker.batching import FIRST, Pace

TIMEOUT, SHARE = 10.0, 1.0


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Lane:
    """A worker's use of a Pace on a virtual clock: decides a backlog at so many seconds a command.

    Each transaction has `fixed` seconds of its own. `open` collects how long transactions were open, `taken` how many
    commands they took, `lost` how many were aborted because deciding took too long while they were open.
    """

    def __init__(self, most: int = 16_000, fixed: float = 0.005) -> None:
        self.clock, self.fixed = Clock(), fixed
        self.pace = Pace(most, SHARE, self.clock)
        self.open, self.taken, self.lost = list[float](), list[int](), 0

    def work_off(self, backlog: int, seconds: float) -> None:
        while backlog:
            backlog -= self._transaction(min(backlog, self.pace.limit), seconds)

    def _transaction(self, fetched: int, seconds: float) -> int:
        cheap, decided = self.pace.is_cheap, 0
        self.pace.begin()
        began = self.clock.now
        while decided < fetched and not self.pace.is_over:
            chunk = min(200, fetched - decided) if cheap else 1
            self.clock.now += chunk * seconds
            self.pace.took(chunk)
            decided += chunk
            if cheap and self.pace.is_over:
                self.open.append(self.clock.now - began)
                self.lost += 1
                self.clock.now += self.pace.failed()
                return 0
        if not cheap:
            began = self.clock.now
        self.clock.now += self.fixed
        self.open.append(self.clock.now - began)
        self.taken.append(decided)
        self.pace.committed()
        return decided


@pytest.mark.parametrize("seconds", [0.005, 0.05, 0.5, 5.0])
def test_a_backlog_of_slow_commands_is_worked_off_in_short_transactions(seconds: float) -> None:
    processor = Lane()
    processor.work_off(2000, seconds)
    assert max(processor.open) < TIMEOUT / 2
    assert processor.lost == 0
    assert max(processor.taken) <= SHARE / seconds + 1


def test_with_cheap_commands_and_a_backlog_it_grows_to_the_most() -> None:
    processor = Lane()
    processor.work_off(200_000, 20e-6)
    assert processor.taken[:4] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert processor.taken[7:-1] == [16_000] * len(processor.taken[7:-1])
    assert max(processor.open) < SHARE


def test_commands_that_become_slow_end_one_transaction_early_and_no_second_one() -> None:
    processor = Lane()
    processor.work_off(100_000, 20e-6)
    processor.work_off(1000, 0.02)
    assert processor.lost == 1
    # What is found out after a chunk of 200 is found within the timeout.
    assert max(processor.open) < TIMEOUT / 2
    processor.work_off(200_000, 20e-6)
    assert max(processor.taken) == 16_000


def test_after_a_start_nothing_is_decided_in_an_open_transaction_before_it_was_measured() -> None:
    pace = Pace(16_000, SHARE, Clock())
    assert (pace.limit, pace.is_cheap) == (FIRST, False)


def test_one_slow_moment_is_forgotten_within_a_second_of_work() -> None:
    processor = Lane()
    processor.work_off(100_000, 20e-6)
    processor.work_off(1, 0.3)
    assert processor.pace.limit < 10
    before = processor.clock.now
    processor.work_off(5000, 20e-6)
    assert processor.clock.now - before < 1.0
    assert processor.pace.limit > 1000


def test_a_slow_broker_does_not_make_single_commands_of_a_backlog() -> None:
    processor = Lane(fixed=3.0)
    processor.work_off(10, 20e-6)
    assert processor.pace.limit >= FIRST


def test_it_halves_down_to_one_and_waits_longer_each_time() -> None:
    pace = Pace(4000, SHARE, Clock())
    waits = [pace.failed() for _ in range(14)]
    assert (pace.limit, pace.failures) == (1, 14)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


def test_it_grows_in_steps_so_that_most_tries_fit() -> None:
    processor = Lane(4000)
    processor.work_off(50_000, 20e-6)
    processor.pace.failed()
    processor.pace.committed()
    assert (processor.pace.limit, processor.pace.failures) == (2125, 0)
    for _ in range(100):
        processor.pace.committed()
    assert processor.pace.limit == 4000
