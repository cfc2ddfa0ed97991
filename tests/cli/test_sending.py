"""`leftfold send --file`: commands from a file, each answered under the number of its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from leftfold import memory
from leftfold.cli.data.send_file import send_lines
from leftfold.memory import World
from leftfold.runtime.project import Usage
from services.baskets.app import app
from tests.cli.shell import Typed

OPEN = {"basket_id": "b-1", "household_id": "h", "store_id": "s", "at": "2017-01-01T10:00:00Z"}
ITEM = {"basket_id": "b-1", "product_id": "p", "quantity": 2, "sales_value": "3.98", "at": "2017-01-01T10:00:00Z"}


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
    item = {"command": "AddItem", "id": "item", "expected_version": 1, "fields": ITEM}
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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("AddItem", "line 2: that is no JSON"),
        ("[]", "line 2: a command is a JSON object: a line looks like"),
        (opened(key="b-2", ids="x"), "line 2: there is no 'ids' in a line"),
        ({"id": "x", "fields": {}}, "line 2: `command` and `id` are texts"),
        (opened(key="b-2", command="OpenBaskt"), "line 2: there is no command .* did you mean OpenBasket"),
        (opened(key="b-2", expected_version=-1), "line 2: expected_version is -1, and must be a whole number"),
        (
            opened(key="b-2", fields=OPEN | {"at": "x", "y": 2}),
            r"(line 2: OpenBasket\.\w+: .*\n?){2,}",
        ),
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


def test_on_a_terminal_only_what_was_not_accepted_is_told(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sent(world, tmp_path / "c.ndjson", opened(), opened(id="other"), as_json=False) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("line 2: BasketAlreadyOpen: ")
    assert err.endswith("2 commands: 1 accepted, 1 refused\n")


@pytest.mark.parametrize("words", [(), ("AddItem", "--file", "c"), ("--file", "c", "--id", "x")])
def test_a_command_or_a_file_is_named_and_not_both(typed: Callable[..., Typed], words: tuple[str, ...]) -> None:
    told = typed("send", *words)
    assert (told.code, told.out) == (2, "")
    assert "--file" in told.err


def test_a_file_that_is_not_there_is_a_slip(world: World, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="cannot be read: No such file"):
        send_lines(world.client, app, str(tmp_path / "none"), window=1, timeout=1.0, as_json=False)
