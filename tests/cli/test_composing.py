"""What is typed after `leftfold send` becomes a command, or an error that names the field."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from leftfold.cli.data.send import command_class, compose, sample
from leftfold.cli.options import read_key
from leftfold.model.position import Position
from leftfold.runtime.as_of import read_position
from leftfold.runtime.project import Usage
from services.baskets.app import app
from services.baskets.commands import AddItem, CheckOut, OpenBasket

ITEM = '{"basket_id": "b-1", "product_id": "p", "quantity": 2, "sales_value": "3.98", "at": "2017-01-01T10:00:00Z"}'


def test_a_command_is_found_by_its_name_with_or_without_category() -> None:
    assert command_class(app, "AddItem") is AddItem
    assert command_class(app, "baskets.AddItem") is AddItem


def test_an_unknown_command_comes_with_the_nearest() -> None:
    with pytest.raises(Usage, match=r"called 'AddItm'; did you mean AddItem\?\nknown: AddItem, ApplyCoupon"):
        command_class(app, "AddItm")


def test_json_becomes_the_command() -> None:
    assert compose(AddItem, ITEM).command == AddItem(
        basket_id="b-1",
        product_id="p",
        quantity=2,
        sales_value=Decimal("3.98"),
        at=datetime(2017, 1, 1, 10, tzinfo=UTC),
    )


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


def test_a_sample_leaves_out_what_may_be_left_out() -> None:
    assert sample(AddItem) == '{"basket_id": "...", "product_id": "...", "quantity": 1, "sales_value": "1.00"}'
    assert "household_id" in sample(OpenBasket)


@pytest.mark.parametrize("text", ["b.events[3:17,4:2] c.events[0:1]", '{"b.events":{"3":17,"4":2},"c.events":{"0":1}}'])
def test_a_position_is_read_as_it_is_printed(text: str) -> None:
    assert read_position(text) == Position({"b.events": {3: 17, 4: 2}, "c.events": {0: 1}})


@pytest.mark.parametrize("text", ["17", "b.events[3]", "b.events[]", "{17}"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="no position"):
        read_position(text)


def test_a_key_is_taken_as_it_is_typed() -> None:
    assert read_key(app.view("basket_summary"), "50%/a b") == "50%/a b"
