"""Records of hostile writers: projectors, routers and clients read them, and keep serving others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leftfold import App, FoldView, Process, SpreadView, Timer, memory
from leftfold.engine.processing.command_wire import ack, nack, read_reply
from leftfold.engine.processing.process_wire import MAX_BYTES, Router, Unusable, read_input
from leftfold.errors import ContractError, LeftfoldError
from leftfold.model.keys import partition_of
from leftfold.model.position import Position, Receipt
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Letter, Outgoing
from leftfold.ports.protocols import RawRecord
from tests.domains import trade
from tests.domains.shop import (
    Add,
    Added,
    BasketEvent,
    CheckedOut,
    CheckOut,
    Open,
    Opened,
    Spend,
    TooDear,
    checkouts,
    lines,
    open_baskets,
    sell,
    spend,
)
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench
from tests.engine.fold_bench import out as checked_out
from tests.engine.processor_bench import CommandBench
from tests.hostility import weight, worsened

CASES = 4_000


def wait(given: BasketEvent, state: int) -> Sequence[Open | Timer[Open]]:
    return []


def process_by(correlate: Callable[[BasketEvent], Any]) -> Process[BasketEvent, int, Open]:
    """A process that waits, an instance for each name that `correlate` gives."""
    return Process(
        "waiting",
        inputs=BasketEvent,
        sends=Open,
        state=int,
        initial_state=0,
        correlate=correlate,
        react=wait,
        evolve=lambda state, given: state,
    )


process = process_by(lambda given: given.basket_id)
router = Router("shop", process, lambda key: partition_of(key, PARTITIONS))


def chosen(given: BasketEvent) -> str:
    """What a client may choose freely."""
    return given.product if isinstance(given, Added) else given.household


careless = Router("shop", process_by(chosen), lambda key: partition_of(key, PARTITIONS))
NAMES = ["", "@", "h", "a\0b", "\u202e", " ", "ä" * 500, "ä" * 501, "x" * 1000, "x" * 1001, "x" * 25_000, "x" * 900_000]
"""Values of such a field; the last one makes an event near the limit."""


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


def is_input(record: RawRecord) -> bool:
    """Whether it becomes an input, else it is a dead letter; a broker takes either, and a worker can read the input."""
    out = tried(careless, record)
    if isinstance(out, Unusable):
        letter = Letter(RawRecord("waiting.dead", out.letter.partition, 0, *out.letter[1:]))
        assert (letter.is_event, letter.reason) == (True, str(out))
        assert letter.source == f"{record.topic}/{record.partition}/{record.offset}"
        assert letter.text("dead_reference") or letter.record.value == record.value
        assert weight(out.letter) <= MAX_BYTES
        return False
    assert weight(out) <= MAX_BYTES
    assert read_input(RawRecord("waiting.commands", out.partition, 0, *out[1:])).key == (out.key or b"").decode()
    return True


def tried(careful: Router, record: RawRecord) -> Outgoing | Unusable:
    """What comes of an event that concerns the process."""
    try:
        out = careful.route(record)
    except Unusable as error:
        return error
    assert out is not None
    return out


def parked(bench: FoldBench) -> set[str]:
    """What the projector could not fold."""
    views = [bench.live(view) for view in bench.wanted]
    return {
        key
        for generation in views
        for checkpoint in bench.store.checkpoints(generation).values()
        for key in checkpoint.parked
    }


def test_events_of_any_commands_are_folded_and_routed() -> None:
    rng, processor, bench = random.Random(15), CommandBench(), FoldBench(open_baskets, checkouts)
    commands = [Open(basket_id="b", household="h"), Add(basket_id="b", product="p", price=Decimal(1))]
    for _ in range(CASES // 100):
        processor.now += 120
        basket = f"basket-{rng.randrange(1000)}"
        some = [processor.record(rng.choice(commands).model_copy(update={"basket_id": basket})) for _ in range(98)]
        some += [processor.record(CheckOut(basket_id=basket)), processor.record(CheckOut(basket_id="b"))]
        for out in processor.run(*(worsened(rng, one) for one in some)).events:
            record = bench.log.append(TOPIC, out.partition, out.key, out.value, out.headers)
            assert routed(record), record
    bench.settle()
    assert len(bench.rows(open_baskets)) + len(bench.rows(checkouts)) > CASES // 200
    assert parked(bench) == set()


def test_any_instance_key_that_a_client_chooses_gives_an_input_or_a_dead_letter() -> None:
    rng, processor, letters, inputs = random.Random(18), CommandBench(), set[str](), set[str]()
    for number in range(CASES // 100):
        processor.now += 120
        names = rng.choices(NAMES, [10] * 10 + [1] * 2, k=30)
        some = [processor.record(Open(basket_id=f"{number}-{n}", household=name)) for n, name in enumerate(names)]
        some += [
            processor.record(Add(basket_id=f"{number}-{n}", product=rng.choice(NAMES), price=Decimal(1)))
            for n in range(3)
        ]
        for out in processor.run(*some).events:
            record = RawRecord(TOPIC, out.partition, 7, *out[1:])
            fields = json.loads(record.value or b"")
            name = fields.get("product", fields.get("household"))
            (inputs if is_input(record) else letters).add(name)
    assert letters == {name for name in NAMES if name in ("", "@") or len(name.encode()) > 1000}
    assert inputs == set(NAMES) - letters


@pytest.mark.parametrize("name", ["half \ud800", 7])
def test_only_a_text_is_taken_for_a_value_that_a_client_has_chosen(name: Any) -> None:
    """Half of a surrogate pair is a value; a number is a slip in the code, behind which nothing is routed."""
    slips = Router("shop", process_by(lambda given: name), lambda key: 0)
    (record,) = FoldBench().write(Opened(basket_id="b", household="h"))
    with pytest.raises(ContractError) as raised:
        slips.route(record)
    assert isinstance(raised.value, Unusable) is isinstance(name, str)


def test_an_input_is_weighed_as_the_broker_of_its_topic_weighs_it() -> None:
    """At every length around the limit of a topic that takes less than events weigh."""
    routers = [Router("shop", process, lambda key: 0, max_bytes=most) for most in (2_000, 20_000)]
    taken, left = 0, 0
    for most, strict in zip((2_000, 20_000), routers, strict=True):
        for length in range(most - 1_500, most):
            (record,) = FoldBench().write(Opened(basket_id="b", household="h" * length))
            out = tried(strict, record)
            if isinstance(out, Unusable):
                assert "bytes, and " in str(out)
                left += 1
            else:
                assert weight(out) <= most
                taken += 1
    assert taken > 100
    assert left > 100


def test_a_world_in_memory_dead_letters_events_that_name_no_instance() -> None:
    by_product = trade.checkout_with(correlate=lambda given: getattr(given, "product", None))
    app = App("trade", partitions=1, deciders=trade.app.deciders, processes=[by_product])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with memory(app, now=now) as world:
        for number, product in enumerate(["", "@", "x" * 1001, "x" * 1000, "tea"]):
            world.client.send(trade.Place(order=f"o-{number}", product=product, at=now))
        letters = [Letter(record) for record in world.dead("checkout")]
        assert [len(recorded.event.product) for recorded in world.events("stock")] == [1000, 3]
    assert [letter.reason.removeprefix("checkout.correlate gave ") for letter in letters] == [
        "'', which is no name of an instance",
        "'@', which is no name of an instance",
        "a key of 1,001 bytes; 1,000 are the most",
    ]
    assert [letter.record.key for letter in letters] == [b"o-0", b"o-1", b"o-2"]
    assert not any(letter.is_input for letter in letters)


def test_any_broken_events_leave_the_rows_of_others_folded() -> None:
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
    bench.settle(bench.projector(max_parked=CASES))
    alone.settle()
    rows, stopped = bench.rows(open_baskets), parked(bench)
    assert {key: row for key, row in rows.items() if key.startswith("good-")} == alone.rows(open_baskets)
    assert not any(key.startswith("good-") for key in stopped)
    assert len(stopped) > 100
    assert refused > 100


def test_any_answer_is_read_or_refused() -> None:
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


by_household = FoldView("by_household", events=CheckedOut, row=Spend, key=lambda event: event.household, evolve=spend)
by_product = SpreadView("by_product", events=CheckedOut, row=Spend, each=lines, evolve=sell)


@pytest.mark.parametrize("view", [by_household, by_product], ids=lambda view: view.name)
def test_any_row_key_that_a_client_chooses_stops_no_view(view: Any) -> None:
    """In any order, between flushes as they fall: every row that has a name is there, and what has none is counted."""
    chance = random.Random(4711)
    bench = FoldBench(view)
    projector, unnamed, expected = bench.settle(), 0, set[str]()
    for number in range(300):
        name = chance.choice(NAMES)
        bench.write(checked_out(f"b-{number}", name, **{name: 1, "pear": 2}))
        unnamed += not name
        expected |= {name, "pear"} if view is by_product else {name}
        if chance.random() < 0.1:
            projector = bench.settle(projector if chance.random() < 0.5 else None)
    bench.settle(projector)
    assert not bench.reports.of("view stopped")
    assert set(bench.rows(view)) == expected - {""}
    (why,) = bench.views[view].describe().parked.values()
    assert why.waiting == unnamed > 0
