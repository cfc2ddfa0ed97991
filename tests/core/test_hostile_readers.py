"""What hostile writers leave in the log: tails, routers and clients read it, and go on for everybody else."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal

from leftfold import Process, Timer
from leftfold.codec import header
from leftfold.engine.reply import ack, nack, read_reply
from leftfold.engine.router import Router
from leftfold.envelope import Receipt
from leftfold.errors import ContractError, LeftfoldError
from leftfold.partitioner import partition_of
from leftfold.ports import RawRecord
from leftfold.position import Position
from tests.core.bench import LaneBench
from tests.core.folding import PARTITIONS, TOPIC, FoldBench
from tests.core.shop import Add, BasketEvent, CheckOut, Open, Opened, TooDear, checkouts, open_baskets
from tests.hostility import worsened

CASES = 10_000


def wait(given: BasketEvent, state: int) -> Sequence[Open | Timer[Open]]:
    return []


process = Process(
    "waiting",
    inputs=BasketEvent,
    sends=Open,
    state=int,
    initial_state=0,
    correlate=lambda given: given.basket_id,
    react=wait,
    evolve=lambda state, given: state,
)
router = Router("shop", process, lambda key: partition_of(key, PARTITIONS))


def routed(record: RawRecord) -> bool:
    """Whether the record becomes an input, which is where it belongs and names its source; False when it is refused."""
    try:
        out = router.route(record)
    except ContractError as error:
        str(error).encode()
        return False
    if out is not None:
        assert out.key is not None
        assert out.partition == partition_of(out.key, PARTITIONS)
        assert header(out.headers, "origin") == f"{record.topic}/{record.partition}/{record.offset}/0".encode()
    return out is not None


def parked(bench: FoldBench) -> set[str]:
    """What the tail could not fold."""
    views = [bench.live(view) for view in bench.wanted]
    return {key for generation in views for mark in bench.store.marks(generation).values() for key in mark.parked}


def test_whatever_clients_send_the_events_that_come_of_it_are_folded_and_routed() -> None:
    rng, lane, bench = random.Random(15), LaneBench(), FoldBench(open_baskets, checkouts)
    commands = [Open(basket_id="b", household="h"), Add(basket_id="b", product="p", price=Decimal(1))]
    for _ in range(CASES // 100):
        lane.now += 120
        basket = f"basket-{rng.randrange(1000)}"
        some = [lane.record(rng.choice(commands).model_copy(update={"basket_id": basket})) for _ in range(98)]
        some += [lane.record(CheckOut(basket_id=basket)), lane.record(CheckOut(basket_id="b"))]
        for out in lane.run(*(worsened(rng, one) for one in some)).events:
            record = bench.log.append(TOPIC, out.partition, out.key, out.value, out.headers)
            assert routed(record), record
    bench.settle()
    assert len(bench.rows(open_baskets)) + len(bench.rows(checkouts)) > CASES // 100
    assert parked(bench) == set()


def test_whatever_else_stands_among_the_events_those_of_others_are_folded() -> None:
    rng, bench, alone, refused = random.Random(16), FoldBench(open_baskets), FoldBench(open_baskets), 0
    model = FoldBench().write(Opened(basket_id="bad", household="h"))[0]
    for number in range(CASES):
        if number % 100 == 0:
            good = Opened(basket_id=f"good-{number % 5000}", household="h")
            alone.write(good)
            bench.write(good)
            continue
        bad = worsened(rng, model._replace(key=b"bad-%d" % number))
        refused += not routed(bench.log.append(TOPIC, partition_of(bad.key or b"", PARTITIONS), *bad[3:6]))
    bench.settle(bench.tail(max_parked=CASES))
    alone.settle()
    rows, stopped = bench.rows(open_baskets), parked(bench)
    assert {key: row for key, row in rows.items() if key.startswith("good-")} == alone.rows(open_baskets)
    assert not any(key.startswith("good-") for key in stopped)
    assert len(stopped) > 100
    assert refused > 100


def test_whatever_stands_in_an_answer_it_is_one_or_refused() -> None:
    rng, taken = random.Random(17), 0
    nacked = json.dumps(nack(TooDear(price=Decimal(101)))).encode()
    goods = [ack(1, 1, Position.at(TOPIC, 0, 7).to_json()), nacked]
    for _ in range(CASES):
        model = RawRecord("shop.replies", 0, 0, None, rng.choice(goods), [("ce_causationid", b"c")], 0)
        try:
            found = read_reply(worsened(rng, model).value or b"", Add, PARTITIONS)
        except ContractError as error:
            str(error).encode()
            continue
        assert isinstance(found, Receipt | LeftfoldError)
        taken += isinstance(found, Receipt)
    assert CASES // 10 < taken < CASES
