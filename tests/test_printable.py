"""Text of others is printed without anything that steers a terminal, and JSON says the same without it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold.safety import printable, printable_json

STEERING = {*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
texts = st.text(st.characters() | st.sampled_from([chr(code) for code in [*STEERING, 0xD800, 0xDFFF]]))


def steers(text: str) -> bool:
    return any(ord(char) in STEERING or 0xD800 <= ord(char) <= 0xDFFF for char in text)


@given(texts)
def test_nothing_that_is_printed_steers_and_everything_else_stays(text: str) -> None:
    told = printable(text)
    assert not steers(told)
    assert printable(told) == told
    assert steers(text) or told == text
    told.encode()


@given(texts)
def test_json_says_the_same(text: str) -> None:
    told = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert not steers(told)
    assert json.loads(told) == {text: [text]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\x1b[2J\r\n\t\x00", r"\x1b[2J\x0d\x0a\x09\x00"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("a\u202eb\u2028c\ud800", r"a\u202eb\u2028c\ud800"),
        ("Zoë, 東京 🙂 [b] \\n", "Zoë, 東京 🙂 [b] \\n"),
    ],
)
def test_a_character_is_shown_by_its_number(text: str, told: str) -> None:
    assert printable(text) == told
