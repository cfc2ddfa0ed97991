"""Batches of a worker: planned by time, and decided by a real processor on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from leftfold.kafka.worker.batching import CHUNK, FIRST, BatchDecider, OutOfTime, Pace
from leftfold.ports.outgoing import Batch
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add, Basket, BasketCommand, BasketEvent, baskets_with, decide
from tests.engine.processor_bench import CommandBench

TIMEOUT, SHARE = 10.0, 1.0


class Work:
    """Transactions of a worker on a virtual clock, at so many seconds a command; `taken` counts their commands."""

    def __init__(self, most: int = 16_000) -> None:
        self.now, self.taken = 0.0, list[int]()
        self.pace = Pace(most, SHARE, lambda: self.now)

    def work_off(self, backlog: int, seconds: float, fixed: float = 0.005) -> None:
        while backlog:
            fetched, decided, cheap = min(backlog, self.pace.limit), 0, self.pace.is_cheap
            self.pace.begin()
            while decided < fetched and not self.pace.is_over:
                chunk = min(CHUNK, fetched - decided) if cheap else 1
                self.now += chunk * seconds
                self.pace.took(chunk)
                decided += chunk
            self.now += fixed
            self.taken.append(decided)
            self.pace.committed()
            backlog -= decided


def test_with_cheap_commands_and_a_backlog_the_limit_grows_to_its_maximum() -> None:
    work = Work()
    work.work_off(200_000, 20e-6)
    assert work.taken[:4] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert set(work.taken[7:-1]) == {16_000}


def test_after_a_start_nothing_is_decided_in_an_open_transaction_before_it_was_measured() -> None:
    pace = Work().pace
    assert (pace.limit, pace.is_cheap) == (FIRST, False)


def test_one_slow_moment_is_forgotten_within_a_second_of_work() -> None:
    work = Work()
    work.work_off(100_000, 20e-6)
    work.work_off(1, 0.3)
    assert work.pace.limit < 10
    before = work.now
    work.work_off(5000, 20e-6)
    assert work.now - before < 1.0
    assert work.pace.limit > 1000


def test_a_slow_broker_does_not_make_single_commands_of_a_backlog() -> None:
    work = Work()
    work.work_off(10, 20e-6, fixed=3.0)
    assert work.pace.limit >= FIRST


def test_after_failures_the_limit_halves_down_to_one_and_grows_in_steps_and_waits_grow() -> None:
    work = Work(4000)
    work.work_off(50_000, 20e-6)
    work.pace.failed()
    work.pace.committed()
    assert (work.pace.limit, work.pace.failures) == (2125, 0), "most transactions fit"
    for _ in range(100):
        work.pace.committed()
    assert work.pace.limit == 4000
    waits = [work.pace.failed() for _ in range(14)]
    assert (work.pace.limit, work.pace.failures) == (1, 14)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


class Slow:
    """A processor whose commands take the seconds that their price says."""

    def __init__(self, max_bytes: int = 1_000_000) -> None:
        self.now, self.decided = 0.0, 0
        self.dearer_after = float("inf")
        self.bench = CommandBench(baskets_with(decide=self._decide), max_bytes)
        self.pace = Pace(16_000, SHARE, lambda: self.now)
        self.guarded = list[float]()
        self.deciding = BatchDecider[RawRecord](
            self.bench.processor, self.pace, TIMEOUT, lambda record: record, self._guard
        )

    def records(self, count: int, seconds: str) -> list[RawRecord]:
        price = Decimal(seconds)
        return [self.bench.record(Add(basket_id=f"b{n % 7}", product="p", price=price)) for n in range(count)]

    def _decide(self, command: BasketCommand, state: Basket) -> Sequence[BasketEvent]:
        self.decided += 1
        price = float(command.price) if isinstance(command, Add) else 0.0
        self.now += price * 100 if self.decided > self.dearer_after else price
        return decide(command, state)

    @contextmanager
    def _guard(self, seconds: float) -> Iterator[None]:
        began = self.now
        yield
        self.guarded.append(self.now - began)
        assert self.now - began <= seconds


@pytest.mark.parametrize(("seconds", "most"), [("0.005", 201), ("0.05", 21), ("0.5", 3), ("5", 1)])
def test_a_backlog_of_a_slow_decider_is_decided_before_its_transactions_open(seconds: str, most: int) -> None:
    slow = Slow()
    backlog: list[Any] = slow.records(300, seconds)
    while backlog:
        slow.pace.begin()
        batch, count, too_slow = slow.deciding.before(backlog[: slow.pace.limit])
        assert (too_slow, 0 < count <= most) == (None, True)
        slow.bench.processor.commit(batch, {})
        slow.pace.committed()
        assert not slow.pace.is_cheap
        del backlog[:count]
    assert max(slow.guarded) <= SHARE + 2 * float(seconds)
    assert sum(slow.bench.state(f"b{n}").version for n in range(7)) == 300


def test_a_restart_takes_a_small_first_transaction_and_stops_it_by_time() -> None:
    slow = Slow()
    slow.pace.begin()
    decided = slow.deciding.before(slow.records(FIRST, "9"))
    assert (slow.pace.limit, decided.done, slow.now) == (FIRST, 1, 9.0)


def test_commands_that_become_slow_while_a_transaction_is_open_end_it_within_a_chunk() -> None:
    slow = Slow()
    records = [*slow.records(2 * CHUNK, "0.00001"), *slow.records(2 * CHUNK, "0.01")]
    slow.pace.begin()
    chunks = slow.deciding.during(Batch(), records)
    next(chunks), next(chunks)
    with pytest.raises(OutOfTime):
        next(chunks)
    assert len(records) == 2 * CHUNK
    assert slow.now < SHARE + CHUNK * 0.01
    slow.pace.failed()
    assert not slow.pace.is_cheap


def test_a_new_producer_that_takes_its_time_does_not_count_as_deciding() -> None:
    slow = Slow()
    slow.pace.begin()
    chunks = slow.deciding.during(Batch(), slow.records(2 * CHUNK, "0.00001"))
    slow.now += 20 * SHARE
    next(chunks), next(chunks)
    assert list(chunks) == []
    slow.pace.committed()
    assert slow.pace.is_cheap


def test_a_second_decision_that_weighs_the_state_stops_by_time() -> None:
    slow = Slow(max_bytes=5_000)
    heavy = Add(basket_id="b", product="p" * 200, price=Decimal("0.001"))
    records = [slow.bench.record(heavy) for _ in range(60)]
    slow.dearer_after = len(records)
    slow.pace.begin()
    batch, done, found = slow.deciding.before(records)
    assert (found, 0 < done < 20) == (None, True)
    slow.bench.processor.commit(batch, {})
    assert slow.bench.state("b").version == done
    assert max(slow.guarded) < 3 * SHARE


def test_a_command_that_outlives_a_transaction_is_found_and_refused_when_it_is_alone() -> None:
    slow = Slow()
    (first,), (record,) = slow.records(1, "0"), slow.records(1, "12.5")
    slow.pace.begin()
    batch, count, found = slow.deciding.before([first, record])
    assert (batch.events, count, found) == ([], 0, record)
    refused = slow.deciding.alone(record)
    ((_, reason),) = [one for one in refused.dead[0].headers if one[0] == "dead_reason"]
    assert b"deciding took 12.5 s, but a transaction may last 10 s" in reason
    assert (refused.events, refused.states, refused.counts) == ([], [], {"dead": 1})
    assert refused.replies[0].error is not None
    assert slow.deciding.alone(first).counts == {"accepted": 1}
