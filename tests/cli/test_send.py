"""What is typed after `leftfold send`, and elsewhere as a time, a position or a key, is read or names what is wrong."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import typer
from pydantic import ConfigDict

from leftfold import Command, FoldView, memory
from leftfold.cli.data.send import command_class, compose, sample
from leftfold.cli.data.send_file import send_lines
from leftfold.cli.options import read_key, read_time, seconds
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.runtime.as_of import read_position
from leftfold.runtime.project import Usage
from services.baskets.app import app
from services.baskets.commands import AddItem, CheckOut, OpenBasket
from tests.cli.shell import Shell, Typing
from tests.domains.ledger import Moved

ITEM = '{"basket_id": "b-1", "product_id": "p", "quantity": 2, "sales_value": "3.98", "at": "2017-01-01T10:00:00Z"}'
OPEN = {"basket_id": "b-1", "household_id": "h", "store_id": "s", "at": "2017-01-01T10:00:00Z"}


def test_a_command_is_found_by_its_name_with_or_without_category_and_an_unknown_one_comes_with_the_nearest() -> None:
    assert command_class(app, "AddItem") is command_class(app, "baskets.AddItem") is AddItem
    with pytest.raises(Usage, match=r"called 'AddItm'; did you mean AddItem\?\nknown: AddItem, ApplyCoupon"):
        command_class(app, "AddItm")


def test_json_becomes_the_command_and_a_sample_leaves_out_what_may_be_left_out(shop: Shell) -> None:
    when = datetime(2017, 1, 1, 10, tzinfo=UTC)
    item = AddItem(basket_id="b-1", product_id="p", quantity=2, sales_value=Decimal("3.98"), at=when)
    assert compose(AddItem, ITEM).command == item
    assert sample(AddItem) == '{"basket_id": "...", "product_id": "...", "quantity": 1, "sales_value": "1.00"}'
    assert "household_id" in sample(OpenBasket)
    for words in (("send", "AddItem"), ("send", "AddItem", "-")):
        result = shop(*words)
        assert (result.code, result.out) == (2, "")
        assert 'AddItem needs its fields: leftfold send AddItem \'{"cart_id": ' in result.err


class Weigh(Command, category="scales", key="scale"):
    model_config = ConfigDict(strict=True)

    scale: str
    kilos: float
    price: Decimal
    note: float | str


class Paid(Command, category="tills", key="till"):
    till: str
    amount: Decimal


def test_a_number_stays_one_and_an_amount_keeps_its_digits() -> None:
    typed = '{"scale": "s", "kilos": 0.00005, "price": 12345678901234567.80, "note": 1.5}'
    price = Decimal("12345678901234567.80")
    assert compose(Weigh, typed).command == Weigh(scale="s", kilos=0.00005, price=price, note=1.5)
    assert "12345678901234567.80" in compose(Weigh, typed).command.model_dump_json()
    assert '"100.0"' in compose(Paid, '{"till": "t", "amount": 100.0}').command.model_dump_json()


def test_a_missing_time_called_at_is_now_which_is_said_once_it_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC)
    command, filled = compose(CheckOut, '{"basket_id": "b-1"}')
    assert isinstance(command, CheckOut)
    assert before <= command.at <= datetime.now(UTC)
    assert datetime.fromisoformat(filled) == command.at
    assert compose(AddItem, ITEM).filled == ""
    assert capsys.readouterr().err == "", "it may be refused yet"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("basket_id=b", "that is no JSON"),
        ('{"n": 1e99999999999999999999}', "that is no JSON"),
        ('{"n": ' + "[" * 100_000, "that is no JSON"),
        ("[1]", "a command is a JSON object: AddItem looks like"),
        (ITEM.replace("2,", '"two",'), "AddItem.quantity: input should be a valid integer"),
        (ITEM.replace('"quantity": 2, ', ""), "AddItem.quantity: field required"),
        (ITEM.replace("quantity", "quantty"), "AddItem.quantty: there is no such field; did you mean quantity?"),
        (ITEM.replace("2017-01-01T10:00:00Z", "yesterday"), "AddItem.at: input should be a valid datetime"),
        (ITEM.replace("b-1", ""), "AddItem.basket_id: the key may not be empty, and '@' is reserved"),
        (ITEM.replace("b-1", "@"), "AddItem.basket_id: the key may not be empty, and '@' is reserved"),
    ],
)
def test_what_is_wrong_names_the_field(text: str, message: str) -> None:
    with pytest.raises(Usage) as caught:
        compose(AddItem, text)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["b.events[3:17,4:2] c.events[0:1]", '{"b.events":{"3":17,"4":2},"c.events":{"0":1}}'])
def test_a_position_is_read_as_it_is_printed(text: str) -> None:
    assert read_position(text) == Position({"b.events": {3: 17, 4: 2}, "c.events": {0: 1}})


@pytest.mark.parametrize("text", ["17", "b.events[3]", "b.events[]", "{17}"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="no position"):
        read_position(text)


def test_a_key_is_taken_as_it_is_typed_and_a_time_in_it_has_a_zone() -> None:
    def key(event: Moved) -> tuple[str, datetime]:
        raise NotImplementedError

    for text in ("50%/a b", "a,b=c", "=", ",@[3:17]"):
        assert read_key(app.view("basket_summary"), text) == text
    view = FoldView("timed", events=Moved, row=Moved, key=key, evolve=lambda row, event: event)
    with pytest.raises(Usage, match="2026-01-01T12:00:00 has no time zone; write 2026-01-01T12:00:00Z for UTC"):
        read_key(view, "b/2026-01-01T12:00")


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        yield world


def sent(world: World, path: Path, *lines: object, as_json: bool = True) -> int:
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines) + "\n", "utf-8")
    return send_lines(world.client, world.app, str(path), window=10, timeout=1.0, as_json=as_json)


def opened(key: str = "b-1", **others: object) -> dict[str, object]:
    return {"command": "OpenBasket", "id": f"open/{key}", "fields": OPEN | {"basket_id": key}, **others}


def test_answers_come_in_the_order_of_the_lines(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item = {"command": "AddItem", "id": "item", "expected_version": 1, "fields": json.loads(ITEM)}
    assert sent(world, tmp_path / "c.ndjson", opened(), "", item, item | {"id": "again"}) == 1
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["line"], first["id"], first["version"], first["events"]) == (1, "open/b-1", 1, 1)
    assert (second["line"], second["id"], second["version"]) == (3, "item", 2)
    assert (third["line"], third["id"], third["error"]) == (4, "again", "ConflictError")


def test_the_same_file_sent_again_is_answered_as_before(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [opened(f"b-{n}") for n in range(30)]
    assert sent(world, tmp_path / "c.ndjson", *lines) == 0
    answers = capsys.readouterr()
    assert sent(world, tmp_path / "c.ndjson", *lines) == 0
    assert [json.loads(line)["version"] for line in capsys.readouterr().out.splitlines()] == [1] * 30
    assert len(world.events("baskets")) == 30
    assert answers.err == "30 commands: 30 accepted\n"


def test_a_file_whose_lines_have_ids_is_sent_again_as_a_whole(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.stop("baskets")
    assert sent(world, tmp_path / "c.ndjson", opened(), opened("b-2"), as_json=False) == 75
    world.start("baskets")
    assert "send the same file again" in capsys.readouterr().err
    assert sent(world, tmp_path / "c.ndjson", opened(), opened("b-2")) == 0


@pytest.mark.parametrize("as_json", [False, True], ids=["", "json"])
def test_a_line_without_an_id_is_asked_about_again_by_itself(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    world.stop("baskets")
    line = {"command": "OpenBasket", "fields": {name: value for name, value in OPEN.items() if name != "at"}}
    assert sent(world, tmp_path / "c.ndjson", line, opened("b-2"), as_json=as_json) == 75
    world.start("baskets")
    result = capsys.readouterr().err
    assert "do not send the whole file again" in result
    (words,) = [shlex.split(one.partition("safely: ")[2]) for one in result.splitlines() if "safely: " in one]
    assert (words[:3], words[4]) == (["leftfold", "send", "baskets.OpenBasket"], "--id")
    receipt = world.client.send(compose(OpenBasket, words[3], id_=words[5]).command, id=words[5])
    assert receipt.version == len(world.stream("baskets", "b-1")) == 1, "answered as before"


def test_a_file_with_a_wrong_line_and_lines_without_ids_is_not_sent_again_as_a_whole(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Usage, match="line 2: that is no JSON"):
        sent(world, tmp_path / "c.ndjson", {"command": "OpenBasket", "fields": OPEN}, "AddItem")
    assert "do not send the whole file again" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("OpenBasket", json.dumps(OPEN)), ("--file", "c.ndjson")], ids=["one", "file"])
def test_a_command_ends_when_no_broker_is_there(
    typed: Typing, place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (place / "c.ndjson").write_text(json.dumps(opened()), "utf-8")
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")
    result = typed("send", *words, "--app", "services.baskets.app:app", "--timeout", "0.05s")
    result.ended(69, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("AddItem", "line 2: that is no JSON"),
        ('{"n": 1e99999999999999999999}', "line 2: that is no JSON"),
        ('{"n": ' + "[" * 100_000, "line 2: that is no JSON"),
        ("[]", "line 2: a command is a JSON object: a line looks like"),
        (opened(key="b-2", ids="x"), "line 2: there is no 'ids' in a line"),
        ({"id": "x", "fields": {}}, "line 2: `command` and `id` are texts"),
        (opened(key="b-2", command="OpenBaskt"), "line 2: there is no command .* did you mean OpenBasket"),
        (opened(key="b-2", expected_version=-1), "line 2: expected_version is -1, and must be a whole number"),
        (opened(key="b-2", fields=OPEN | {"at": "x", "y": 2}), r"(line 2: OpenBasket\.\w+: .*\n?){2,}"),
        (opened(key="b-2", fields={}), "line 2: with an id the command must be the same each time: say at"),
        (opened(key=""), "line 2: OpenBasket.basket_id: the key may not be empty"),
    ],
)
def test_a_wrong_line_is_named_when_those_before_it_are_answered(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: object, why: str
) -> None:
    with pytest.raises(Usage, match=why):
        sent(world, tmp_path / "c.ndjson", opened(), line, opened("b-3"))
    assert [json.loads(one)["line"] for one in capsys.readouterr().out.splitlines()] == [1]
    assert len(world.events("baskets")) == 1


def test_on_a_terminal_only_what_was_not_accepted_is_printed(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sent(world, tmp_path / "c.ndjson", opened(), opened(id="other"), as_json=False) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("line 2: BasketAlreadyOpen: ")
    assert err.endswith("2 commands: 1 accepted, 1 refused\n")


@pytest.mark.parametrize("words", [(), ("AddItem", "--file", "c"), ("--file", "c", "--id", "x")])
def test_a_command_or_a_file_is_named_and_not_both(typed: Typing, words: tuple[str, ...]) -> None:
    result = typed("send", *words)
    assert (result.code, result.out) == (2, "")
    assert "--file" in result.err


def test_a_line_that_is_no_text_is_named_once_those_before_it_are_answered(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.ndjson"
    file.write_bytes(json.dumps(opened()).encode() + b'\n{"command": "\xe9"}\n')
    with pytest.raises(Usage, match="line 2: it is no UTF-8"):
        send_lines(world.client, world.app, str(file), window=10, timeout=1.0, as_json=True)
    assert json.loads(capsys.readouterr().out)["version"] == 1


def test_what_can_be_read_once_only_is_sent_and_not_counted_before(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of `--file <(...)` at a terminal, whose progress bar must not take them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        written = threads.submit(pipe.write_text, json.dumps(opened()) + "\n")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert send_lines(world.client, world.app, str(pipe), window=10, timeout=1.0, as_json=True) == 0
        written.result()
    assert "1 command: 1 accepted" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_a_slip(world: World, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="cannot be read: No such file"):
        send_lines(world.client, app, str(tmp_path / "none"), window=1, timeout=1.0, as_json=False)


def test_lengths_of_time_are_read_as_people_write_them() -> None:
    assert {seconds(text) for text in ("90", "90s", "1.5m", ".025 h")} == {90.0}
    written = ("2h", "1d", "250 ms", ".5", "1e3", "0", 60.0)
    assert [seconds(text) for text in written] == [7200.0, 86_400.0, 0.25, 0.5, 1000.0, 0.0, 60.0]


@pytest.mark.parametrize("text", ["", "-1s", "soon", "1 s s", "inf", "s"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write 30s, 5m or 1h"):
        seconds(text)


@pytest.mark.parametrize(("text", "ago"), [("30m", 1800), ("12h", 43_200), ("0d", 0), ("90d", 90 * 86_400)])
def test_an_age_is_the_time_so_long_ago(text: str, ago: float) -> None:
    latest = datetime.now(UTC) - timedelta(seconds=ago)
    assert latest <= read_time(text) <= datetime.now(UTC) - timedelta(seconds=ago)


def test_a_time_is_read_with_its_zone_and_an_age_before_all_records_is_the_beginning() -> None:
    assert read_time("9999999d") == datetime(1970, 1, 1, tzinfo=UTC), "before all records"
    assert read_time("2026-11-01T12:00:00Z") == read_time("2026-11-01T13:00:00+01:00")
    with pytest.raises(typer.BadParameter, match="write 2026-11-01T00:00:00Z for UTC"):
        read_time("2026-11-01")


@pytest.mark.parametrize("text", ["", "30", "soon", "a year", "-1d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A number alone is refused: it could be meant in days as well as in seconds."""
    with pytest.raises(typer.BadParameter, match="is no time; write 2026-01-01T00:00:00Z, or an age: 12h, 90d"):
        read_time(text)


class Interrupted:
    """A connection whose user types Ctrl-C while a command is under way."""

    client = property(lambda self: self)

    def send(self, *_: object, **more: object) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("place_id", ["s", "https://shop.example/s?token=abc"])
def test_a_send_that_is_interrupted_says_how_to_ask_again(
    typed: Typing, monkeypatch: pytest.MonkeyPatch, place_id: str
) -> None:
    """A command that is typed again without its id would be decided twice."""
    monkeypatch.setattr("leftfold.cli.data.send.connect", lambda *_, **more: nullcontext(Interrupted()))
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")  # which is how long `--kafka` waits for this one
    body = json.dumps(OPEN | {"store_id": place_id})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = typed("send", "OpenBasket", body, "--app", "services.baskets.app:app", "--kafka", address)
    result.ended(130, "Ask again, safely: ")
    name, fields, _, _, *others = shlex.split(result.err.splitlines()[0].partition("safely: leftfold send ")[2])
    assert name == "baskets.OpenBasket"
    assert fields == ("-" if "?" in place_id else OpenBasket(**json.loads(body)).model_dump_json())
    assert others[:2] == ["--kafka", address]
    assert ("standard input" in result.err) == ("?" in place_id)
