from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from leftfold import ContractError
from leftfold.client.commands import CommandRequest
from leftfold.client.packing import CommandPacker
from leftfold.ports.message_codec import header
from tests.domains.shop import Open

PACKER = CommandPacker("shop", lambda: b"2026-01-01T00:00:00Z")
REQUEST = CommandRequest(Open(basket_id="b", household="h"), "id", None, None)


def test_a_command_is_a_record_of_its_topic() -> None:
    packed = PACKER.pack(REQUEST._replace(expected_version=3), b"shop.replies/0")
    assert (packed.topic, packed.key, packed.id) == ("baskets.commands", b"b", b"id")
    assert header(packed.headers, "ce_time") == b"2026-01-01T00:00:00Z"
    assert packed.body == (header(packed.headers, "ce_type"), packed.value, 3)
    at = datetime(2017, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert header(PACKER.pack(REQUEST._replace(at=at), b"").headers, "ce_time") == b"2017-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"command": Open(basket_id="b", household="\ud800")}, "Open cannot be written: .*surrogates not allowed"),
        ({"command": Open(basket_id="\ud800", household="h")}, "Open cannot be written: .*surrogates not allowed"),
        ({"id": "\ud800"}, "surrogates not allowed"),
        ({"principal": "\ud800"}, "surrogates not allowed"),
        ({"id": UUID(int=7)}, r"id=UUID\('0{8}-.*-0{11}7'\) is UUID, and must be text: id=str\(...\)"),
        ({"principal": 7}, r"principal=7 is int, and must be text: principal=str\(...\)"),
        ({"principal": "p" * 2000}, "is longer than"),
        ({"id": "i" * 1009}, "id .* is longer than 1,008 bytes"),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "date value out of range"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)}, "no time zone"),
        ({"at": date(2026, 1, 1)}, r"at=datetime.date\(2026, 1, 1\) is date, and must be an aware datetime"),
        ({"expected_version": 1.5}, "expected_version=1.5 must be a whole number"),
        ({"expected_version": "1"}, "expected_version='1' must be a whole number"),
        ({"id": ""}, "neither may be empty"),
        ({"command": Open(basket_id="", household="h")}, "neither may be empty"),
        ({"command": Open(basket_id="@", household="h")}, "'@' is reserved"),
    ],
)
def test_what_cannot_be_a_record_is_a_contract_error(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ContractError, match=why):
        PACKER.pack(REQUEST._replace(**changed), b"shop.replies/0")
