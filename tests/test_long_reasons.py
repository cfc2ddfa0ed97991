"""Reasons of any length are veiled in linear time, and nothing secret is shown because a text was cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold.ports.outgoing import LOOKED_AT, looked_at, reason_of
from leftfold.safety import veiled

_END = r"(?=['\")\]},.;:]*(?:[&#\s\"<>]|$))"
_LOGIN = re.compile(r"(?<=://)\S+@")
_VALUE = re.compile(rf"(?<=[?&#])([\w.~%+\[\]-]+)=[^&#\s\"<>]+?{_END}")
_QUERY = re.compile(rf"(/[^\s?]*\?)[^&=#\s\"<>]+?{_END}")
PARTS = ["://", "/", "?", "&", "a=", "=", "@", "#", " ", "\n", '"', "'", ")", ".", ":", "<", "%", "[", "é", "b", "\x85"]
mixtures = st.lists(st.sampled_from(PARTS), max_size=40).map("".join)


def veiled_by_backtracking(text: str) -> str:
    """What is to be left out, in three plain patterns whose time is quadratic."""
    return _QUERY.sub(r"\1***", _VALUE.sub(r"\1=***", _LOGIN.sub("***@", text)))


@given(mixtures | st.text(max_size=60))
def test_short_texts_are_veiled_as_by_the_plain_patterns(text: str) -> None:
    assert veiled(text) == veiled_by_backtracking(text)


@pytest.mark.parametrize("part", ["://", "?", "&", "a=", "@", "#", "/", "&a=.", "/?", "://?&a=@#", "x?/y=.", "&a", "."])
def test_a_megabyte_is_cut_before_any_pattern_sees_it(part: str) -> None:
    text = part * (1_000_000 // len(part))
    assert len(looked_at(text)) <= LOOKED_AT + len("***")
    assert len(reason_of(OSError(text))) <= 2000
    assert len(veiled(text)) <= 2 * len(text)  # linear, too: the plain patterns would take hours


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("".join))
def test_long_mixtures_are_cut_and_veiled(part: str) -> None:
    text = part * (100_000 // len(part))
    assert len(looked_at(text)) <= LOOKED_AT + len("***")
    veiled(text)


@pytest.mark.parametrize("before", [0, 10, 1970, 1990, 2000, LOOKED_AT - 30, LOOKED_AT - 22, LOOKED_AT - 15])
@pytest.mark.parametrize("length", [1, 7, 3000, 9000, 200_000])
def test_a_secret_that_the_cut_divides_is_not_shown(before: int, length: int) -> None:
    secret = "hunter2" * length
    urls = (f"redis://me:{secret}@r/0", f"https://h/x?token={secret}", f"https://h/x?{secret}", f"/x?a=1&t={secret}")
    for url in urls:
        assert "hunter" not in reason_of(OSError(" " * before + url))
        assert "hunter" not in reason_of(OSError("(" * before + url))


def test_a_word_that_the_cut_divides_is_kept_when_it_is_no_url() -> None:
    assert reason_of(ValueError("x" * 9000)) == ("ValueError: " + "x" * 9000)[:2000]
    assert looked_at("a " * 9000) == ("a " * 9000)[:LOOKED_AT]
