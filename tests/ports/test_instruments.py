"""One trace from a caller to the first readable row, and the metrics on its way; without an SDK nothing happens."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from leftfold import App, ConflictError, FoldView, OutcomeUnknown, Reaction, memory
from leftfold.cli.log.trace import fields_of, line_of
from leftfold.engine.causation import Trace, step_of
from leftfold.engine.views.projection_spans import ProjectionSpans
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.shared_subscription import SharedSubscription
from leftfold.model import keys as names
from leftfold.ports.instruments import (
    COMMAND_SECONDS,
    CONSUMED,
    INSTRUMENTS,
    MOST_TRACED,
    PROJECT,
    VIEW_FLUSH_SECONDS,
    Operation,
    is_sampled,
    member,
    outcome_of,
    recorded_by,
    traceparent,
)
from leftfold.ports.message_codec import header
from leftfold.testing.simulation.schedules import run, scheduled
from tests.domains.shop import household_spend, product_sales
from tests.domains.trade import NOW, OutOfStock, Paid, Pay, Place, Placed, Reserved, checkout, orders, payments, stock
from tests.engine.fold_bench import FoldBench, out
from tests.simulation.scenarios.purse import PURSE

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(frozen=True)
class Held:
    orders: int


def _hold(row: Held | None, event: Reserved) -> Held:
    return Held(1 if row is None else row.orders + 1)


def _product(event: Reserved) -> str:
    return event.product


holds = FoldView("holds", events=Reserved, row=Held, key=_product, evolve=_hold)
app = App("trade", partitions=4, deciders=[orders, stock, payments], processes=[checkout], views=[holds])
PLACE = Place(order="o", product="p", at=NOW)


class Recording:
    """Spans and metrics of a block, in memory."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()

    @contextmanager
    def on(self, **options: Any) -> Iterator[None]:
        tracers, meters = TracerProvider(**options), MeterProvider([self._reader])
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        with recorded_by(tracers, meters):
            yield

    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def below(self, parent: int, name: str) -> ReadableSpan:
        """The span of a name that was caused by another one."""
        children = [span for span in self.spans() if span.parent is not None and span.parent.span_id == parent]
        (found,) = [span for span in children if span.name == name]
        return found

    def points(self, name: str) -> dict[str, Any]:
        """The data points of a metric, by the outcome or name in their attributes."""
        data = self._reader.get_metrics_data()
        assert data is not None
        found = [metric for one in data.resource_metrics for of in one.scope_metrics for metric in of.metrics]
        points = [point for metric in found if metric.name == name for point in metric.data.data_points]
        return {
            str(point.attributes.get("leftfold.outcome") or point.attributes["leftfold.name"]): point
            for point in points
            if point.attributes is not None
        }


@pytest.fixture
def recording() -> Recording:
    return Recording()


def test_one_trace_leads_from_its_caller_to_the_first_readable_row(recording: Recording) -> None:
    with recording.on(), memory(app, now=NOW) as world:
        with Operation("POST", "", "client", kafka=False).span("/commands", parent=CALLER):
            world.client.send(PLACE)
        assert world.views[holds].get("p") == Held(1)
    chain = [
        "POST /commands",
        "send orders.commands",
        "decide orders.commands",
        "react checkout.commands",
        "decide stock.commands",
        "project stock.events",
    ]
    above = int(CALLER.split("-")[2], 16)
    for name in chain:
        span = recording.below(above, name)
        assert span.context is not None
        assert span.context.trace_id == int(CALLER.split("-")[1], 16), name
        above = span.context.span_id
    flush = recording.named("flush holds")
    assert above in _ends_of(recording, flush), "a flush links to the events whose rows it writes"


def _ends_of(recording: Recording, flush: ReadableSpan) -> list[int]:
    """The spans of events below the contexts that a flush links to."""
    linked = {link.context.span_id for link in flush.links}
    return [
        span.context.span_id
        for span in recording.spans()
        if span.context is not None and span.parent is not None and span.parent.span_id in linked
    ]


def test_spans_have_the_attributes_of_messaging(recording: Recording) -> None:
    with recording.on(), memory(app, now=NOW) as world:
        world.client.send(PLACE, id="one")
    decided = recording.named("decide orders.commands")
    assert decided.kind.name == "CONSUMER"
    about = dict(decided.attributes or {})
    assert about.pop("messaging.kafka.offset") == 0
    assert about.pop("messaging.destination.partition.id") in set("0123")
    assert about == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders.commands",
        "messaging.operation.name": "decide",
        "messaging.operation.type": "process",
        "messaging.message.id": "one",
        "messaging.message.conversation_id": "one",
        "leftfold.outcome": "accepted",
    }


def test_spans_of_commands_say_on_whose_behalf_they_were_sent_and_so_do_those_that_follow(
    recording: Recording,
) -> None:
    with recording.on(), memory(app, now=NOW) as world:
        world.client.send(PLACE, principal="ann")
        world.client.send_many([Pay(order="o")], principal="bob")
    sent = {("send orders.commands", "ann"), ("send commands", "bob")}
    decided = {("orders", "ann"), ("stock", "ann"), ("payments", "bob"), ("orders", "bob")}
    assert {
        (span.name, (span.attributes or {}).get("enduser.id"))
        for span in recording.spans()
        if span.name.startswith(("send ", "decide "))
    } == sent | {(f"decide {names.commands(category)}", principal) for category, principal in decided}


def test_the_trace_of_the_log_says_on_whose_behalf_each_record_was_written() -> None:
    with memory(app, now=NOW) as world:
        world.client.send(PLACE, id="one", principal="ann")
        topics = [topic(name) for name in ("orders", "stock") for topic in (names.commands, names.events)]
        records = [record for topic in topics for part in world.log.of(topic) for record in part]
    nodes = [node for node, _ in Trace(step for step in map(step_of, records) if step).walk() if node.step]
    assert len(nodes) == len(records) >= 4
    assert {fields_of(node, 0, "one")["principal"] for node in nodes} == {"ann"}
    assert all("  for ann" in line_of(node, "one").plain for node in nodes)


def test_what_is_on_the_wire_is_the_header_of_w3c_and_nothing_without_an_sdk(recording: Recording) -> None:
    def headers(topic: str) -> list[bytes]:
        return [header(record.headers, "traceparent") for part in world.log.of(topic) for record in part]

    topics = [names.commands("orders"), names.events("orders"), names.commands("checkout"), names.commands("stock")]
    with recording.on(), memory(app, now=NOW) as world:
        world.client.send(PLACE)
        for topic in topics:
            assert headers(topic)
            for found in headers(topic):
                assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", found)
                assert is_sampled(found)
    with memory(app, now=NOW) as world:
        world.client.send(PLACE)
        assert {text for topic in topics for text in headers(topic)} == {b""}


def test_the_span_of_a_batch_links_to_the_spans_that_sent_its_commands(recording: Recording) -> None:
    with scheduled(PURSE.app), recording.on():
        for seed in range(10):
            assert not run(PURSE, seed, faults=()).wrong
    sent = {span.context.span_id for span in recording.spans() if span.name == "send purse.commands" and span.context}
    batches = [span for span in recording.spans() if span.name == "process purse.commands"]
    linked = [[link.context.span_id for link in batch.links] for batch in batches]
    assert [len(links) for links in linked] == [
        (one.attributes or {})["messaging.batch.message_count"] for one in batches
    ]
    assert max(map(len, linked)) > 1, "a batch in which commands of several traces join"
    assert {one for links in linked for one in links} == sent
    assert not [batch for batch in batches if batch.parent is not None]


def test_a_trace_that_is_not_recorded_costs_no_spans_behind_its_sender(recording: Recording) -> None:
    with recording.on(sampler=ALWAYS_OFF), memory(app, now=NOW) as world:
        world.client.send(PLACE)
        (found,) = [record for part in world.log.of(names.events("orders")) for record in part]
    assert header(found.headers, "traceparent")
    assert not is_sampled(header(found.headers, "traceparent"))
    assert not recording.spans()


def test_commands_of_one_call_share_a_span_and_of_a_large_batch_only_some_events_have_one(recording: Recording) -> None:
    many = MOST_TRACED + 9
    with recording.on(), memory(app, now=NOW) as world:
        receipts = world.client.send_many([Pay(order=str(number)) for number in range(many)])
        assert len(receipts) == many
        sent = recording.named("send commands")
        assert dict(sent.attributes or {})["messaging.batch.message_count"] == many
        records = [record for part in world.log.of(names.events("payments")) for record in part]
        spans = ProjectionSpans()
        spans.restart(["holds"])
        spans.read(records, is_first=True)
        spans.end()
    projected = [span for span in recording.spans() if span.name == f"{PROJECT.name} payments.events"]
    assert len(records) == many
    assert len(projected) == MOST_TRACED


def test_events_count_for_the_views_that_are_still_folded(recording: Recording) -> None:
    bench = FoldBench(household_spend, product_sales)
    bench.settle()
    writers = [ProjectionWriter(view, bench.live(view), bench.store) for view in (household_spend, product_sales)]
    with recording.on():
        group = SharedSubscription(bench.log.reader, writers, bench.store)
        group.writers.remove(writers[1])
        bench.write(out("b", "h", p=1))
        assert group.step(100, 0.0)[0] == 1
        assert group.land() == []
    assert {name: point.value for name, point in recording.points(CONSUMED.name).items()} == {household_spend.name: 1}


def test_the_time_to_an_answer_is_counted_by_its_outcome(recording: Recording) -> None:
    with recording.on(), memory(app, now=NOW) as world:
        world.client.send(PLACE)
        with pytest.raises(ConflictError):
            world.client.send(Pay(order="o"), expected_version=7)
    found = recording.points(COMMAND_SECONDS.name)
    assert {outcome: point.count for outcome, point in found.items()} == {"accepted": 1, "conflict": 1}
    flushes = recording.points(VIEW_FLUSH_SECONDS.name)
    assert flushes["written"].count >= 1


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Paid(order="o"), "accepted"),
        (OutOfStock(product="p"), "rejected"),
        (ConflictError("o", 1, 2), "conflict"),
        (OutcomeUnknown("id"), "unknown"),
        (ValueError(), "failed"),
    ],
)
def test_every_answer_has_an_outcome(answer: object, word: str) -> None:
    assert outcome_of(answer) == word


def test_a_call_of_a_reaction_is_below_its_event(recording: Recording, settled: Callable[..., None]) -> None:
    seen: list[str] = []
    receipts = Reaction("receipts", events=Placed, act=lambda event, delivery: seen.append(traceparent()))
    with recording.on(), memory(app, now=NOW) as world:
        world.client.send(PLACE)
        (record,) = [record for part in world.log.of(names.events("orders")) for record in part]
        settled(receipts, record)
    acted = recording.named("act receipts")
    assert acted.context is not None
    assert acted.parent is not None
    assert header(record.headers, "traceparent").decode().split("-")[2] == f"{acted.parent.span_id:016x}"
    assert seen[0].split("-")[2] == f"{acted.context.span_id:016x}"


@pytest.fixture
def settled() -> Callable[[Reaction[Any], Any], None]:
    """Has a reaction act on one record, until that is done."""
    from leftfold.engine.reactions.reaction_processor import Handoff, ReactionProcessor

    def act(reaction: Reaction[Any], record: Any) -> None:
        processor = ReactionProcessor(reaction, lambda pending, error: None)
        processor.hold((record.topic, record.partition), Handoff(record.offset, ""))
        processor.take(record)
        while processor.step(1.0):
            pass

    return act


def test_names_are_those_of_the_conventions_and_each_has_a_unit_and_a_meaning() -> None:
    assert len({one.name for one in INSTRUMENTS}) == len(INSTRUMENTS)
    for one in INSTRUMENTS:
        assert one.name.startswith(("leftfold.", "messaging.")), one.name
        assert one.unit in ("s", "By") or one.unit.startswith("{"), one
        assert one.meaning.endswith("."), one


def test_without_an_sdk_a_process_does_not_even_import_the_api() -> None:
    code = (
        "import sys; from tests.ports.test_instruments import PLACE, NOW, app; from leftfold import memory\n"
        "for name in [name for name in sys.modules if name.startswith('opentelemetry')]: del sys.modules[name]\n"
        "with memory(app, now=NOW) as world: world.client.send(PLACE)\n"
        "assert world.views[app.views[0]].get('p').orders == 1\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_members_are_named_by_kind_and_name() -> None:
    assert member("view", "holds", outcome="written") == {
        "leftfold.kind": "view",
        "leftfold.name": "holds",
        "leftfold.outcome": "written",
    }
