"""The client against a real broker, and a responder that answers as each test says."""

from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from leftfold.client.commands import Client
from leftfold.engine.processing.command_wire import DELIVERY_SECONDS, read_command
from leftfold.errors import ConflictError, ContractError, DecisionFailed, InfrastructureError, OutcomeUnknown
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.messages import Command
from leftfold.model.position import Position, Receipt
from leftfold.ports.message_codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add, TooDear, app
from tests.kafka.responder import Responder, accepted, refused
from tests.threads import working
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

COMMANDS = "baskets.commands"
BEFORE_YEAR_1 = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))


class Fly(Command, category="nowhere", key="bird"):
    bird: str


def add(basket: str = "s-1") -> Add:
    return Add(basket_id=basket, product="p", price=Decimal(1))


@pytest.fixture(scope="module")
def settings(kafka: KafkaSettings) -> KafkaSettings:
    """A broker that has the App's topics."""
    ensure(app, kafka)
    return kafka


@pytest.fixture
def client(settings: KafkaSettings) -> Iterator[KafkaClient]:
    """A client of the App."""
    with KafkaClient("shop", settings) as client:
        yield client


def test_the_kafka_client_is_a_client(client: KafkaClient) -> None:
    shared: Client = client
    assert shared is client


def test_an_accepted_command_returns_its_receipt(client: KafkaClient, settings: KafkaSettings) -> None:
    with Responder(settings, COMMANDS, lambda record: [accepted(3, events=2)]):
        receipt = client.send(add())
    assert (receipt.version, receipt.events) == (3, 2)
    assert receipt.position == Position.at("baskets.events", 0, 3)


def test_a_command_on_the_wire_is_read_by_a_processor(client: KafkaClient, settings: KafkaSettings) -> None:
    at = datetime(2017, 1, 1, tzinfo=UTC)
    with Responder(settings, COMMANDS, lambda record: [accepted(1)]) as responder:
        client.send(add("s-ü"), id="my key", expected_version=0, at=at)
    (record,) = responder.seen
    codec: MessageCodec[Add] = MessageCodec([Add])
    received = read_command(codec, record)
    assert received.command == add("s-ü")
    assert (received.key, received.id, received.expected_version) == ("s-ü", "my key", 0)
    assert received.time == b"2017-01-01T00:00:00Z"
    assert header(record.headers, "reply_to").startswith(b"shop.replies/")
    assert header(record.headers, "ce_source") == b"/shop/client"
    assert received.deadline is not None
    assert received.deadline - record.time <= 1000 * DELIVERY_SECONDS, "the broker's time of it, on this machine"


def test_a_refusal_raises_the_commands_own_error_and_others_keep_their_classes(
    client: KafkaClient, settings: KafkaSettings
) -> None:
    own = TooDear(price=Decimal("12.50"))
    errors = [own, ConflictError("s-1", 3, 4), ContractError("unreadable"), DecisionFailed("a bug")]
    answers = iter([refused(error) for error in (own, *errors)])
    with Responder(settings, COMMANDS, lambda record: [next(answers)]):
        with pytest.raises(TooDear) as caught:
            client.send(add())
        got = client.send_many(add() for _ in errors)
    assert caught.value == own
    assert [(type(e), str(e)) for e in got] == [(type(e), str(e)) for e in errors]


def test_an_unreadable_answer_is_a_contract_error(client: KafkaClient, settings: KafkaSettings) -> None:
    with (
        Responder(settings, COMMANDS, lambda record: [b"no json"]),
        pytest.raises(ContractError, match="no answer that this code can read"),
    ):
        client.send(add())


def test_a_lost_answer_is_got_by_sending_again_with_the_same_id(client: KafkaClient, settings: KafkaSettings) -> None:
    answers = iter([[], [accepted(7)]])
    with Responder(settings, COMMANDS, lambda record: next(answers)) as responder:
        with pytest.raises(OutcomeUnknown) as caught:
            client.send(add(), timeout=0.3)
        receipt = client.send(add(), id=caught.value.command_id)
    assert receipt.version == 7
    assert len({header(record.headers, "ce_id") for record in responder.seen}) == 1
    assert len({record.value for record in responder.seen}) == 1


def test_a_late_and_a_repeated_answer_are_ignored(client: KafkaClient, settings: KafkaSettings) -> None:
    answers = iter([[], [accepted(1), accepted(1), accepted(1)], [accepted(2)]])

    def script(record: RawRecord) -> list[bytes]:
        if len(responder.seen) == 2:
            responder._answer(responder.seen[0], accepted(9))
        return next(answers)

    with Responder(settings, COMMANDS, script) as responder:
        with pytest.raises(OutcomeUnknown):
            client.send(add(), id="late", timeout=0.2)
        assert client.send(add(), id="again").version == 1
        assert client.send(add()).version == 2


def test_send_each_has_no_more_under_way_than_its_window(client: KafkaClient, settings: KafkaSettings) -> None:
    taken = itertools.count()
    commands = (add(f"s-{next(taken)}") for _ in range(50))
    with Responder(settings, COMMANDS, lambda record: [accepted(1)]) as responder:
        each = client.send_each(commands, window=7, ids=(f"each/{n}" for n in range(50)))
        assert responder.seen == [], "nothing is sent before a result is asked for"
        for done, receipt in enumerate(each, 1):
            assert isinstance(receipt, Receipt)
            assert done <= (begun := next(copy(taken))) <= done + 7
    assert begun == 50
    assert {header(record.headers, "ce_id") for record in responder.seen} == {b"each/%d" % n for n in range(50)}
    assert not client._pending._waiting


def test_send_each_that_is_left_early_waits_for_no_more(client: KafkaClient, settings: KafkaSettings) -> None:
    answers = iter([[accepted(1)]])
    with Responder(settings, COMMANDS, lambda record: next(answers, [])):
        each = client.send_each((add("s") for _ in itertools.count()), window=3)
        assert isinstance(next(each), Receipt)
        assert isinstance(each, Generator)
        each.close()
    assert not client._pending._waiting
    with pytest.raises(ValueError, match="window=0"):
        client.send_each([], window=0)


@pytest.fixture
def _asks_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without an answer gives the broker more than a second to explain why."""
    monkeypatch.setattr("leftfold.kafka.client.in_flight._ASK_SECONDS", 60.0)


@pytest.mark.usefixtures("_asks_patiently")
def test_without_a_worker_the_deadline_says_so(client: KafkaClient) -> None:
    with pytest.raises(OutcomeUnknown, match=r"no worker owns baskets\.commands .*start one: leftfold run baskets"):
        client.send(add(), timeout=0.1)


def test_many_answers_come_in_the_order_of_their_commands(settings: KafkaSettings) -> None:
    def script(record: RawRecord) -> list[bytes]:
        n = int((record.key or b"").decode().rpartition("-")[2])
        return [refused(TooDear(price=Decimal(n)))] if n % 3 == 0 else [accepted(n)]

    with Responder(settings, COMMANDS, script), KafkaClient("shop", settings, most=50) as client:
        outcomes = client.send_many(add(f"s-{n}") for n in range(200))
    assert [
        getattr(o, "price", None) if n % 3 == 0 else getattr(o, "version", None) for n, o in enumerate(outcomes)
    ] == [*range(200)]


def test_many_commands_carry_their_own_ids_versions_and_times(client: KafkaClient, settings: KafkaSettings) -> None:
    times = [datetime(2017, 1, day, tzinfo=UTC) for day in (1, 2)]
    with Responder(settings, COMMANDS, lambda record: [accepted(1)]) as responder:
        client.send_many([add("s")] * 2, ids=["a", "b"], expected_versions=[None, 4], times=times)
    names = ("ce_id", "expected_version", "ce_time")
    assert [tuple(header(r.headers, n) for n in names) for r in responder.seen] == [
        (b"a", b"", b"2017-01-01T00:00:00Z"),
        (b"b", b"4", b"2017-01-02T00:00:00Z"),
    ]


def test_of_many_commands_a_silent_one_is_of_unknown_outcome_and_an_oversized_one_is_refused(
    client: KafkaClient, settings: KafkaSettings
) -> None:
    def commands() -> Iterator[Add]:
        yield from map(add, ("a", "silent", "x" * 2_000_000, "b"))
        wait_until(lambda: len(client._pending._waiting) == 1, "the answers to all others")

    with Responder(settings, COMMANDS, lambda record: [] if record.key == b"silent" else [accepted(1)]):
        client.send(add("first"), timeout=WAIT_SECONDS)
        outcomes = client.send_many(commands(), timeout=0.3)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Receipt", "OutcomeUnknown", "ContractError", "Receipt"]


@pytest.mark.parametrize(("key", "id_"), [("", "a"), ("@", "a"), ("s", "")])
def test_empty_and_reserved_names_are_never_sent(client: KafkaClient, key: str, id_: str) -> None:
    with pytest.raises(ContractError, match="neither may be empty"):
        client.send(add(key), id=id_)


def test_two_commands_under_way_cannot_share_an_id(client: KafkaClient, settings: KafkaSettings) -> None:
    with Responder(settings, COMMANDS, lambda record: [accepted(1)] if record.key == b"s" else []):
        outcomes = client.send_many([add("silent"), add("s")], ids=["same", "same"], timeout=0.5)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, ContractError]


def test_a_topic_that_is_not_there_is_named_at_once(client: KafkaClient) -> None:
    with pytest.raises(InfrastructureError, match=r"nowhere\.commands does not exist .*leftfold topics ensure"):
        client.send(Fly(bird="b"))
    with pytest.raises(InfrastructureError, match=r"nowhere\.commands does not exist"):
        client.send_many([Fly(bird="b"), add()])


def test_a_topic_that_is_not_there_takes_no_result_of_the_commands_before_it(
    client: KafkaClient, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, partitions = list[str](), client._cluster.partitions

    def ask(topic: str) -> int:
        asked.append(topic)
        return partitions(topic)

    monkeypatch.setattr(client._cluster, "partitions", ask)
    commands = [add("s-1"), *(Fly(bird="b") for _ in range(100)), add("s-2")]
    with Responder(settings, COMMANDS, lambda record: [accepted(1)]):
        outcomes = [
            client.send_many(commands, timeout=WAIT_SECONDS),
            list(client.send_each(commands, window=2, timeout=WAIT_SECONDS)),
        ]
    wanted = [Receipt, *[InfrastructureError] * 100, Receipt]
    assert [[type(one) for one in each] for each in outcomes] == [wanted, wanted]
    assert len(asked) < 100, "each command asked for the topic that is not there"


def test_closing_a_client_takes_no_result_of_the_commands_before_that(settings: KafkaSettings) -> None:
    client = KafkaClient("shop", settings)

    def commands() -> Iterator[Add]:
        yield add("s-1")
        wait_until(lambda: not client._pending._waiting, "the answer to the first")
        client.close()
        yield add("s-2")

    with Responder(settings, COMMANDS, lambda record: [accepted(1)]):
        first, second = client.send_many(commands(), timeout=WAIT_SECONDS)
    assert isinstance(first, Receipt)
    assert str(second) == "this client is closed; nothing was sent"


def test_threads_share_a_client(client: KafkaClient, settings: KafkaSettings) -> None:
    def work(n: int) -> int:
        return [client.send(add(f"s-{n}")).version for _ in range(10)][-1]

    with (
        Responder(settings, COMMANDS, lambda r: [accepted(int((r.key or b"").decode().rpartition("-")[2]))]),
        ThreadPoolExecutor(8) as pool,
    ):
        assert list(pool.map(work, range(1, 9))) == [*range(1, 9)]


def test_asyncio_gathers_answers(client: KafkaClient, settings: KafkaSettings) -> None:
    async def work() -> list[int]:
        receipts = await asyncio.gather(*(client.asend(add(f"s-{n}")) for n in range(1, 100)))
        return [receipt.version for receipt in receipts]

    with Responder(settings, COMMANDS, lambda r: [accepted(int((r.key or b"").decode().rpartition("-")[2]))]):
        assert asyncio.run(work()) == [*range(1, 100)]


@pytest.mark.usefixtures("_asks_patiently")
def test_asyncio_raises_what_send_raises(client: KafkaClient, settings: KafkaSettings) -> None:
    error = TooDear(price=Decimal(1))
    with Responder(settings, COMMANDS, lambda record: [refused(error)] if record.key == b"s-1" else []):
        with pytest.raises(TooDear):
            asyncio.run(client.asend(add()))
        with pytest.raises(OutcomeUnknown, match="no worker owns"):
            asyncio.run(client.asend(add("silent"), timeout=0.1))


def test_a_cancelled_task_stops_waiting(client: KafkaClient, settings: KafkaSettings) -> None:
    async def work(responder: Responder) -> None:
        task = asyncio.create_task(client.asend(add(), id="cancelled"))
        await asyncio.to_thread(wait_until, lambda: bool(responder.seen), "the command")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Responder(settings, COMMANDS, lambda record: []) as responder:
        asyncio.run(work(responder))
    assert not client._pending._waiting


def test_a_broker_that_is_not_there_is_named() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout=0.5)
    with pytest.raises(
        InfrastructureError, match=r"no broker at 127\.0\.0\.1:1: nothing listens.*is the address right"
    ):
        KafkaClient("shop", settings)


def test_an_app_without_a_reply_topic_is_named(settings: KafkaSettings) -> None:
    with pytest.raises(InfrastructureError, match=r"topic unknown\.replies does not exist"):
        KafkaClient("unknown", settings)


def test_closing_a_client_ends_its_waiting_calls(settings: KafkaSettings) -> None:
    client = KafkaClient("shop", settings)
    silent = Responder(settings, COMMANDS, lambda record: [])
    with silent as responder, working(lambda stop: client.send(add())) as failures:
        wait_until(lambda: responder.seen, "the command")
        client.close()
    assert isinstance(failures[0], OutcomeUnknown)
    assert "the client was closed" in str(failures[0])
    with pytest.raises(InfrastructureError, match="closed"):
        client.send(add())


def test_a_closed_client_refuses_asend_as_it_does_send(settings: KafkaSettings) -> None:
    with KafkaClient("shop", settings) as client, Responder(settings, COMMANDS, lambda record: [accepted(1)]) as there:
        client.send(add())  # from now on it knows the topic
        client.close()
        with pytest.raises(InfrastructureError, match="this client is closed; nothing was sent"):
            asyncio.run(client.asend(add("late"), timeout=1.0))
        with KafkaClient("shop", settings) as other:
            other.send(add("last"))
        assert b"late" not in [record.key for record in there.seen]


FORKING = """
import os, signal, sys
from decimal import Decimal
from leftfold import InfrastructureError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from tests.domains.shop import Add

client = KafkaClient("shop", KafkaSettings(bootstrap_servers=sys.argv[1]))
if not os.fork():
    signal.alarm(120)
    try:
        client.send(Add(basket_id="b", product="p", price=Decimal(1)))
    except InfrastructureError as error:
        print(error, flush=True)
    sys.exit(0)
print(os.wait()[1])
"""


def test_a_forked_process_sends_by_a_client_of_its_own_only_and_ends(settings: KafkaSettings) -> None:
    command = [sys.executable, "-c", FORKING, settings.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, status = done.stdout.splitlines()
    assert "nothing was sent. Connect in the forked process: connect(app)" in refused
    assert status == "0", "it did not end by itself"


def test_a_timeout_may_be_infinite(client: KafkaClient, settings: KafkaSettings) -> None:
    with Responder(settings, COMMANDS, lambda record: [accepted(1)]):
        assert client.send(add(), timeout=math.inf).version == 1
        assert asyncio.run(client.asend(add(), timeout=math.inf)).version == 1


def test_of_many_commands_one_that_cannot_be_sent_is_refused_alone(
    client: KafkaClient, settings: KafkaSettings
) -> None:
    commands, times = [add("s-1"), add("\ud800"), add("s-2"), add("s-3")], [None, None, BEFORE_YEAR_1, None]
    with Responder(settings, COMMANDS, lambda record: [accepted(1)]):
        outcomes = [client.send_many(commands, times=times), list(client.send_each(commands, times=times))]
    wanted = [Receipt, ContractError, ContractError, Receipt]
    assert [[type(one) for one in each] for each in outcomes] == [wanted, wanted]
