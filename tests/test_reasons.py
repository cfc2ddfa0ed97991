"""Why a function failed is told without what its URLs keep secret."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from leftfold import App, Command, Decider, Delivery, Event, Reaction, memory
from leftfold.errors import ContractError
from leftfold.ports.outgoing import reason_of
from leftfold.safety import veiled


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_logins_and_values_of_queries_and_fragments_are_left_out(text: str, told: str) -> None:
    assert veiled(text) == told
    assert veiled(told) == told


def test_a_reason_names_the_kind_of_error_unless_it_is_ours() -> None:
    assert reason_of(OSError("503")) == "OSError: 503"
    assert reason_of(ContractError("no such event")) == "no such event"
    assert len(reason_of(OSError("x" * 9000))) == 2000


def test_a_reason_holds_no_named_secret() -> None:
    assert reason_of(OSError("sasl.password=hunter2 refused")) == "OSError: sasl.password=*** refused"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"url":"https://h/x","password":"p@q","x":1}', '{"url":"https://h/x","password":***,"x":1}'),
        ("{'url':'https://h/x?a=b','password':'c d'}", "{'url':'https://h/x?a=***','password':***}"),
        ("redis://me:pw&token=x@host", "redis://***@host"),
        ("redis://me:my-secret-token=abc@h:1", "redis://***@h:1"),
        ("https://h/x?password=a#b=c&d=e.", "https://h/x?password=***&d=***."),
    ],
)
def test_a_secret_within_another_hides_no_less_of_either(text: str, told: str) -> None:
    assert veiled(text) == told
    assert reason_of(ContractError(text)) == told


class Said(Event, category="words", key="word"):
    word: str


class Say(Command, category="words", key="word"):
    word: str


def post(event: Said, delivery: Delivery) -> None:
    raise OSError(f"https://me:hunter2@hook/{event.word}?token=SEKRET says 500")


def test_neither_topics_nor_logs_hold_what_an_act_let_out(caplog: pytest.LogCaptureFixture) -> None:
    words: Decider[Say, int, Said] = Decider(
        "words",
        commands=Say,
        events=Said,
        state=int,
        initial_state=0,
        decide=lambda command, state: [Said(word=command.word)],
        evolve=lambda state, event: state + 1,
    )
    hook = Reaction("hook", events=Said, act=post, attempts=2)
    app = App("talk", deciders=[words], reactions=[hook])
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC), acts={hook: post}) as world:
        world.client.send(Say(word="hi"))
        (dead,) = world.dead("hook")
    kept = repr(dead.headers) + caplog.text
    assert "OSError: https://***@hook/hi?token=*** says 500" in kept
    assert "hunter2" not in kept
    assert "SEKRET" not in kept
