"""What a reaction is given, when it tries again, and what a world in memory does with it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import App, ConfigurationError, ContractError, Delivery, memory
from leftfold.compatibility import lock_of
from leftfold.engine.reactions.pending import PendingReader
from leftfold.model.reaction import idempotency_key
from leftfold.ports.message_codec import header
from tests.domains.visits import NoAddress, Paid, Pay, Sent, app_with, paid, receipts_with

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def nothing(event: Paid, delivery: Delivery) -> None:
    raise AssertionError(f"{event} was not asked for")


def test_a_key_depends_on_the_reaction_and_the_event_alone() -> None:
    assert idempotency_key("receipts", "e-1") == "3ace09c2-cf5d-5289-8a87-899dc1d2a293"
    assert idempotency_key("receipts", "e-1") == idempotency_key("receipts", "e-1")
    assert len({idempotency_key(r, e) for r in ("receipts", "hooks") for e in ("e-1", "e-2")}) == 4


@given(st.integers(1, 200), st.floats(0, 1))
def test_pauses_double_up_to_the_longest_and_lose_at_most_a_half(attempt: int, chance: float) -> None:
    reaction = receipts_with(nothing, backoff=1.0, longest=60.0)
    whole = min(60.0, 2.0 ** min(attempt - 1, 60))
    assert whole / 2 <= reaction.pause(attempt, chance) <= whole


def test_a_world_in_memory_only_lists_the_deliveries_of_a_reaction() -> None:
    receipts = receipts_with(nothing)
    with memory(app_with(receipts), now=NOW) as world:
        world.client.send(Pay(visit="v"))
        world.client.send(Pay(visit="v"))
        reported = world.deliveries(receipts)
        (_, first), (_, second) = reported
        recorded = [r for r in world.events("visits") if isinstance(r.event, Paid)]
    assert [event for event, _ in reported] == [Paid(visit="v", number=1), Paid(visit="v", number=2)]
    assert (first.key, first.time, first.attempt, first.reaction) == ("v", NOW, 1, "receipts")
    assert first.idempotency_key != second.idempotency_key
    assert [first.position, second.position] == [r.position for r in recorded]
    assert first.correlation_id == recorded[0].correlation_id


def test_a_world_runs_chosen_acts_again_and_then_parks_their_event() -> None:
    sent: Sent = []

    def act(event: Paid, delivery: Delivery) -> None:
        if event.visit == "lost" or delivery.attempt < 3:
            raise OSError("no route")
        sent.append((event, delivery))

    receipts = receipts_with(act, attempts=4)
    with memory(app_with(receipts), now=NOW, acts={receipts: receipts.act}) as world:
        world.client.send(Pay(visit="lost"))
        world.client.send(Pay(visit="v"))
        assert [event for event, _ in sent] == [Paid(visit="v")]
        assert [d.attempt for _, d in world.deliveries(receipts)] == [1, 2, 3, 4, 1, 2, 3]
        assert len({d.idempotency_key for _, d in world.deliveries(receipts)}) == 2
        (dead,) = world.dead("receipts")
    assert header(dead.headers, "dead_reason") == b"OSError: no route"
    assert header(dead.headers, "attempts") == b"4"
    assert dead.value == Paid(visit="lost").model_dump_json().encode()


def test_a_domain_error_of_an_act_is_final() -> None:
    def act(event: Paid, delivery: Delivery) -> None:
        raise NoAddress(visit=event.visit)

    receipts = receipts_with(act)
    with memory(app_with(receipts), now=NOW, acts={receipts: act}) as world:
        world.client.send(Pay(visit="v"))
        assert len(world.deliveries(receipts)) == 1
        assert header(world.dead("receipts")[0].headers, "dead_reason") == b"NoAddress: v has no address"


def test_commands_of_an_act_are_decided_in_order() -> None:
    seen: list[int] = []

    def act(event: Paid, delivery: Delivery) -> None:
        if event.number < 4:
            world.client.send(Pay(visit=event.visit))
        seen.append(event.number)

    receipts = receipts_with(act)
    with memory(app_with(receipts), now=NOW, acts={receipts: act}) as world:
        world.client.send(Pay(visit="v"))
    assert seen == [1, 2, 3, 4]


def test_acts_of_a_reaction_that_the_app_lacks_are_refused() -> None:
    with (
        pytest.raises(ConfigurationError, match="has no reaction 'hooks'"),
        memory(app_with(), now=NOW, acts={receipts_with(nothing, name="hooks"): nothing}),
    ):
        pass


def test_a_newer_event_is_waited_at_and_a_broken_one_is_parked() -> None:
    reader = PendingReader(receipts_with(nothing))
    with pytest.raises(ContractError, match="meets visits.Paid version 2 at visits.events\\[0\\]@7 and knows 1"):
        reader.read(paid("v", 7, type_=b"visits.Paid.v2"))
    broken = reader.read(paid("v", 7)._replace(value=b"{}"))
    assert broken is not None
    assert "no visits.Paid.v1" in str(broken.error)
    assert reader.read(paid("v", 7, type_=b"visits.Left.v1")) is None


def test_the_lock_holds_the_schemas_of_events_that_a_reaction_acts_on() -> None:
    app = App("mails", reactions=[receipts_with(nothing)])
    assert list(lock_of(app).events) == ["visits.Paid.v1"]


def test_an_error_to_give_up_at_is_a_class() -> None:
    with pytest.raises(ConfigurationError, match=r"gives_up= holds ValueError\('x'\); give classes of errors"):
        receipts_with(nothing, gives_up=(ValueError("x"),))
