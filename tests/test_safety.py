"""Text of others is shown without control characters and secrets; errors that cannot be shown stop nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import App, DecisionFailed, Delivery, DomainError, FoldView, memory
from leftfold.errors import ContractError
from leftfold.ports.outgoing import LOOKED_AT, looked_at, reason_of
from leftfold.safety import printable, printable_json, shown, veiled
from tests.domains.ledger_world import NOW, rebuild
from tests.domains.shop import Open, Opened, Summary, baskets, baskets_with
from tests.domains.visits import Paid, Pay, app_with, receipts_with

STEERING = {*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
texts = st.text(st.characters() | st.sampled_from([chr(code) for code in [*STEERING, 0xD800, 0xDFFF]]))


def steers(text: str) -> bool:
    return any(ord(char) in STEERING or 0xD800 <= ord(char) <= 0xDFFF for char in text)


@given(texts)
def test_printed_text_has_no_control_characters_and_is_otherwise_unchanged(text: str) -> None:
    reported = printable(text)
    assert not steers(reported)
    assert printable(reported) == reported
    assert steers(text) or reported == text
    reported.encode()


@given(texts)
def test_printed_json_has_no_control_characters_and_the_same_value(text: str) -> None:
    reported = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert not steers(reported)
    assert json.loads(reported) == {text: [text]}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("\x1b[2J\r\n\t\x00", r"\x1b[2J\x0d\x0a\x09\x00"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("a\u202eb\u2028c\ud800", r"a\u202eb\u2028c\ud800"),
        ("Zoë, 東京 🙂 [b] \\n", "Zoë, 東京 🙂 [b] \\n"),
    ],
)
def test_a_character_is_shown_by_its_number(text: str, reported: str) -> None:
    assert printable(text) == reported


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("http://me:hunter2@hook:80/x says 500", "http://***@hook:80/x says 500"),
        ("https://hooks.example/in?token=SEKRET&v=2 says 500", "https://hooks.example/in?token=***&v=*** says 500"),
        (
            "HTTPConnectionPool(host='h', port=80): Max retries exceeded with url: /hook?token=SEKRET (Caused by ...)",
            "HTTPConnectionPool(host='h', port=80): Max retries exceeded with url: /hook?token=*** (Caused by ...)",
        ),
        ("redis://:hunter2@r/0 'https://a@b/?q=1'", "redis://***@r/0 'https://***@b/?q=***'"),
        ("redis://:p@ss-word@r:6379/0 refused", "redis://***@r:6379/0 refused"),
        ("postgres://app:it's-me@db/x refused", "postgres://***@db/x refused"),
        ("https://u:p/w@h/x", "https://***@h/x"),
        ("(see https://h/x?sig=ab)cd&t=1)", "(see https://h/x?sig=***&t=***)"),
        ("https://h/x?SEKRET, twice", "https://h/x?***, twice"),
        ("https://h/back#access_token=SEKRET.", "https://h/back#access_token=***."),
        ("is a=b? c & d=e; mail to ada@example.org", "is a=b? c & d=e; mail to ada@example.org"),
    ],
)
def test_logins_and_values_of_queries_and_fragments_are_left_out(text: str, reported: str) -> None:
    assert veiled(text) == reported
    assert veiled(reported) == reported


def test_a_reason_names_the_kind_of_error_unless_it_is_ours() -> None:
    assert reason_of(OSError("503")) == "OSError: 503"
    assert reason_of(ContractError("no such event")) == "no such event"
    assert len(reason_of(OSError("x" * 9000))) == 2000


def test_a_reason_holds_no_named_password() -> None:
    assert reason_of(OSError("sasl.password=hunter2 refused")) == "OSError: sasl.password=*** refused"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('{"url":"https://h/x","password":"p@q","x":1}', '{"url":"https://h/x","password":***,"x":1}'),
        ("{'url':'https://h/x?a=b','password':'c d'}", "{'url':'https://h/x?a=***','password':***}"),
        ("redis://me:pw&token=x@host", "redis://***@host"),
        ("redis://me:my-secret-token=abc@h:1", "redis://***@h:1"),
        ("https://h/x?password=a#b=c&d=e.", "https://h/x?password=***&d=***."),
    ],
)
def test_a_secret_within_another_hides_no_less_of_either(text: str, reported: str) -> None:
    assert veiled(text) == reported
    assert reason_of(ContractError(text)) == reported


def test_neither_topics_nor_logs_hold_secrets_of_an_act_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    def post(event: Paid, delivery: Delivery) -> None:
        raise OSError(f"https://me:hunter2@hook/{event.visit}?token=SEKRET says 500")

    hook = receipts_with(post, name="hook", attempts=2)
    with memory(app_with(hook), now=NOW, acts={hook: post}) as world:
        world.client.send(Pay(visit="hi"))
        (dead,) = world.dead("hook")
    kept = repr(dead.headers) + caplog.text
    assert "OSError: https://***@hook/hi?token=*** says 500" in kept
    assert "hunter2" not in kept
    assert "SEKRET" not in kept


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


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("".join))
def test_long_mixtures_are_cut_and_veiled(part: str) -> None:
    text = part * (20_000 // len(part))
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


class Unshowable(Exception):
    """Says nothing of itself."""

    def __str__(self) -> NoReturn:
        raise ValueError("no words")

    __repr__ = __str__


class TooDear(DomainError, message="{price:.2f} is too dear"):
    """Whose message takes a number, which is not checked."""

    price: Any


RAISED: Sequence[tuple[Exception, str]] = [
    (DomainError("a rule in its own words"), "add it to its rejects=: a rule in its own words"),
    (TooDear(price="dear"), "add it to its rejects=: {price:.2f} is too dear TooDear(price='dear')"),
    (TooDear(price=Decimal(3)), "add it to its rejects=: 3.00 is too dear"),
    (Unshowable(), "<Unshowable, of which repr() raises ValueError>"),
]


def failing(raised: Exception) -> Callable[..., Any]:
    """A decide or a fold that fails on a basket called hard."""

    def fail(given: Open | Opened | Summary | None, other: object) -> Any:
        message = given if isinstance(given, Open) else other
        if getattr(message, "basket_id", "") == "hard":
            raise raised
        return [Opened(basket_id=given.basket_id, household="h")] if isinstance(given, Open) else Summary()

    return fail


@pytest.mark.parametrize(("raised", "shown"), RAISED, ids=lambda value: type(value).__name__)
def test_a_decision_that_fails_with_such_an_error_names_it_and_the_next_is_made(raised: Exception, shown: str) -> None:
    with memory(App("shop", deciders=[baskets_with(decide=failing(raised))]), now=NOW) as world:
        with pytest.raises(DecisionFailed) as failed:
            world.client.send(Open(basket_id="hard", household="h"))
        assert shown in str(failed.value)
        assert world.client.send(Open(basket_id="easy", household="h")).version == 1


@pytest.mark.parametrize("raised", [raised for raised, _ in RAISED], ids=lambda value: type(value).__name__)
def test_a_fold_that_fails_with_such_an_error_parks_its_row_and_the_others_are_folded(raised: Exception) -> None:
    opened = FoldView("opened", events=Opened, row=Summary, evolve=failing(raised))
    with memory(App("shop", deciders=[baskets], views=[opened]), now=NOW) as world:
        for basket in ("hard", "easy"):
            world.client.send(Open(basket_id=basket, household="h"))
        assert dict(world.views[opened].items()) == {"easy": Summary()}
        assert rebuild(world, opened).run().parked.keys() == {"hard"}


def test_values_that_can_be_shown_are_shown() -> None:
    assert (shown("text"), shown(3, str)) == ("'text'", "3")
