from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from leftfold.engine.processing import recovery as process_refold
from leftfold.engine.processing.process_wire import ACK, NACK
from leftfold.engine.processing.recovery import ProcessRefold
from leftfold.engine.processing.stream_state import MemoryStates
from leftfold.model.process import Process
from leftfold.ports.outgoing import Batch
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import Checkout, Input, Paid, Placed, checkout, checkout_with, react
from tests.engine.processing.test_process_lane import DUE, PAID, PLACED, RESERVED, Bench, home

HOME = home(b"o")
NO = {"error": "OutOfStock", "message": "no p left", "fields": {"product": "p"}}
BROKEN = {"error": "DecisionFailed", "message": "stock failed on it", "fields": {}}


def fussy(given: Input, state: Checkout) -> Sequence[Any]:
    """Cannot react to payments."""
    if isinstance(given, Paid):
        raise KeyError("a bug")
    return react(given, state)


class Taken(Bench):
    """A bench that keeps what it was given, and what was dead-lettered."""

    def __init__(self, process: Process[Any, Any, Any] = checkout) -> None:
        super().__init__(process)
        self.log: list[RawRecord] = []
        self.letters: list[RawRecord] = []

    def take(self, *records: RawRecord) -> dict[str, int]:
        self.log += records
        return self._commit(self.processor.process(records))

    def kill(self, record: RawRecord) -> None:
        """The record has killed its worker again and again."""
        self.log.append(record)
        self._commit(self.processor.bury(record, "a worker died 3 times at this command"))

    def folded(self, process: Process[Any, Any, Any] | None = None, *, letters: bool = True) -> dict[str, bytes]:
        """What others make of the same inputs from nothing."""
        states: dict[str, bytes] = {}
        self.refused = 0
        for partition in range(4):
            refold = ProcessRefold(process or self.process, MemoryStates())
            for letter in self.letters if letters else ():
                if letter.partition == partition:
                    refold.skip(letter)
            for record in self.log:
                if record.partition == partition:
                    refold.add(record)
            while refold.changed:
                refold.take(1)
            self.refused += refold.refused
            states |= dict(refold.store.items())
        return states

    def state(self) -> dict[str, bytes]:
        """What the processor has written."""
        return {key: value for store in self.stores.values() for key, value in store.items()}

    def _commit(self, batch: Batch) -> dict[str, int]:
        self.processor.commit(batch, {})
        self.sent = [out for sent in batch.sent.values() for out in sent]
        self.letters += [RawRecord("checkout.dead", o.partition, 0, o.key, o.value, o.headers) for o in batch.dead]
        return batch.counts


def test_what_was_dead_lettered_stays_so_whatever_newer_code_would_make_of_it() -> None:
    bench = Taken(checkout_with(react=fussy))
    for event, topic in ((PLACED, "orders.events"), (RESERVED, "stock.events"), (PAID, "payments.events")):
        bench.take(bench.event(event, 1, topic))
    (state,) = bench.folded(checkout_with(version=2)).values()
    assert b'"paid":false' in state, "its Confirm was never sent"
    assert b'"finished":false' in state
    (without,) = bench.folded(checkout_with(version=2), letters=False).values()
    assert b'"finished":true' in without, "it would wait for nothing any more, and the order for ever"


def test_what_killed_its_worker_is_not_taken_when_inputs_are_folded_again() -> None:
    def kills(given: Input, state: Checkout) -> Sequence[Any]:
        if isinstance(given, Paid):
            raise SystemExit(1)
        return react(given, state)

    bench = Taken(checkout_with(react=kills))
    bench.take(bench.event(PLACED, 1))
    bench.kill(bench.event(PAID, 1, "payments.events"))
    assert bench.folded() == bench.state()
    with pytest.raises(SystemExit):
        bench.folded(letters=False)
    assert bench.take(bench.event(PAID, 1, "payments.events")) == {"duplicates": 1}, "it is not asked to die again"


def test_a_timer_or_an_answer_that_killed_its_worker_is_over() -> None:
    bench = Taken()
    bench.take(bench.event(PLACED, 1))
    (reserve,) = bench.sent
    (due,) = bench.processor.due_at(HOME, DUE)
    bench.kill(bench.record(due))
    bench.kill(bench.answer(reserve, ACK, {"version": 1, "events": 1}))
    assert b'"timers":{},"waiting":{}' in bench.state()["o"]
    assert bench.folded() == bench.state()


def test_an_event_that_only_the_router_listens_to_is_not_lost_without_a_word() -> None:
    """A router of newer code was there before this worker ended; the newer worker does not take it for taken."""
    bench = Taken()
    bench.take(bench.event(PLACED, 1))
    record = bench.event(PLACED, 2)
    newer = [(name, b"orders.Shipped.v1" if name == "ce_type" else value) for name, value in record.headers]
    assert bench.take(record._replace(headers=newer)) == {"dead": 1}
    (letter,) = bench.letters
    assert b"does not listen to orders.Shipped.v1" in dict(letter.headers)["dead_reason"]
    assert bench.folded() == bench.state()
    assert bench.take(record._replace(headers=newer)) == {"duplicates": 1}


def test_what_newer_code_cannot_take_is_counted() -> None:
    bench = Taken()
    bench.take(bench.event(PLACED, 1), bench.event(PAID, 1, "payments.events"))
    bench.folded(checkout_with(react=fussy))
    assert bench.refused == 1
    bench.folded()
    assert bench.refused == 0


def history(chance: random.Random, bench: Taken) -> None:
    """Some inputs of three instances, some of them twice, some deadly."""
    offsets = dict.fromkeys(("orders.events", "payments.events"), 0)
    answered = 0
    for _ in range(30):
        order = chance.choice(["o", "q", "r"])
        is_placed = chance.random() < 0.5
        event: Placed | Paid = Placed(order=order, product="p", at=PLACED.at) if is_placed else Paid(order=order)
        topic = "orders.events" if is_placed else "payments.events"
        offsets[topic] += chance.choice([0, 1, 1])
        deed = chance.random()
        if deed < 0.15:
            bench.kill(bench.event(event, offsets[topic], topic))
        elif deed < 0.5 and bench.sent:
            answered += 1
            command = chance.choice(bench.sent)
            said = chance.choice([(ACK, {"version": 1, "events": 1}), (NACK, NO), (NACK, BROKEN), (NACK, [])])
            bench.take(bench.answer(command, *said, offset=answered))
        elif deed < 0.6:
            for partition in range(4):
                bench.take(*[bench.record(due) for due in bench.processor.due_at(partition, DUE)])
        else:
            bench.take(bench.event(event, offsets[topic], topic))


@pytest.mark.parametrize("most", [1, 2000])
def test_folding_all_inputs_again_gives_the_state_that_the_lane_has(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_refold, "_OPEN", most)
    chance, differ = random.Random(5), 0
    for _ in range(100):
        bench = Taken(checkout_with(react=fussy))
        history(chance, bench)
        assert bench.folded() == bench.state()
        differ += bench.folded(checkout, letters=False) != bench.state()
    assert differ > 10, "without their dead letters other states would come of it"
