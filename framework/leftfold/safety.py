"""Guards against hostile input: files of other users, text that controls a terminal, secrets in messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["is_foreign", "printable", "printable_json", "shown", "veiled"]


def is_foreign(path: Path) -> bool:
    """Whether a file or directory belongs neither to this user nor to root; False on systems without users."""
    return hasattr(os, "geteuid") and path.stat().st_uid not in (0, os.geteuid())


# C0, DEL and C1; the marks and controls of writing directions; what separates lines and paragraphs; lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BYTE = 0x100


def printable(text: str) -> str:
    r"""The text with `\xNN` or `\uNNNN` for every unprintable character, newlines included."""
    return _UNSAFE.sub(_named, text)


def printable_json(text: str) -> str:
    r"""JSON of one line with `\uNNNN` for unprintable characters; its content is the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """`repr` or `str` of an object of user code for messages; when that raises, a text with the error."""
    try:
        return form(value)
    except Exception as error:  # noqa: BLE001  # user code may raise anything
        return f"<{type(value).__name__}, of which {form.__name__}() raises {type(error).__name__}>"


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < _BYTE else f"\\u{code:04x}"


_HIDDEN = "***"
# The text that messages contain in place of a login.
_LOGIN_SHAPE = "[user:password"
_SENTENCE = "')]},.;:"  # the end of a sentence or quotation behind a URL is no part of it
_WORD = re.compile(r"\S+")
_PLACE = re.compile(r"[\w.\-\[\]]+:\d{2,5}(?!\d)")
_PATH = re.compile(r"[^\s?]+")
_BARE = re.compile(r"[^&=#\s\"<>]*")
_WORDS = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|signature|api[_-]?key|(?:access|private|account)[_-]?key)"
)
_NAME = rf"{_WORDS}[\w.-]{{0,60}}[\"'\\]{{0,4}}"
_QUOTED = re.compile(
    rf"({_NAME}(?:\s?=\s?|:\s?))(?:b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*')",
    re.IGNORECASE,
)
_VALUE = re.compile(
    # The value of a query ends where an item of a quoted list ends, since another secret may follow it; a secret may
    # contain a `#`.
    rf"(?<=[?&#])(?P<query>(?:[\w.~%+\[\]-]{{0,60}}?(?P<secret>{_WORDS}))?[\w.~%+\[\]-]*(?<=[\w.~%+\[\]-])=)"
    r"(?P<value>(?:[^&#\s\"<>']|'(?!,)|(?(secret)\#|(?!)))+)"
    # After a colon and a space comes prose, unless it is one word up to the end of the line.
    rf"|(?P<named>{_NAME}(?:\s?=\s?|(?<!\.py):))(?!\*\*\*(?:[^\w*]|$))[^\s&]+"
    rf"|(?P<line>{_NAME}:\s)[^\s&]+(?=\s*(?:$|\n))",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic) [\w.~+/=-]{4,}", re.IGNORECASE)


def veiled(text: str) -> str:
    """The text without logins in addresses, without values of queries and fragments, and without named secrets.

    Names of values are kept. A token in a path cannot be recognised as one.
    """
    text = _QUOTED.sub(rf"\1{_HIDDEN}", text)  # first, since the text between quotes may look like anything
    text = _WORD.sub(_without_login, text)
    text = _VALUE.sub(_without_value, text)
    return _BEARER.sub(rf"\1 {_HIDDEN}", "".join(_without_bare_queries(text)))


def _without_login(found: re.Match[str]) -> str:
    """A word, in a URL without the login: all that may belong to a password, which is not always encoded."""
    word = found[0]
    scheme, url, rest = word.partition("://")
    if url:
        login, at, host = rest.rpartition("@")
        return f"{scheme}://{_HIDDEN}@{host}" if at and login and login != _LOGIN_SHAPE else word
    last = word.rfind("@")
    return f"{_HIDDEN}{word[last:]}" if ":" in word[: max(last, 0)] and _PLACE.match(word, last + 1) else word


def _without_value(found: re.Match[str]) -> str:
    if found["query"] is None:
        return f"{found['named'] or found['line']}{_HIDDEN}"
    return f"{found['query']}{_HIDDEN}{_behind(found['value'])}"


def _without_bare_queries(text: str) -> Iterator[str]:
    """Pieces of the text, in which the value of `/path?value`, which has no name, is hidden."""
    done = bare = 0  # ends of the text yielded so far, and of the last query looked at
    for path in _PATH.finditer(text):
        begin = path.end() + 1
        if text[path.end() : begin] != "?" or text.find("/", max(done, path.start()), path.end()) < 0:
            continue
        if begin > bare:
            bare = next(_BARE.finditer(text, begin)).end()
        if begin < bare and text[bare : bare + 1] != "=":
            yield f"{text[done:begin]}{_HIDDEN}"
            done = bare - len(_behind(text[begin:bare]))
    yield text[done:]


def _behind(value: str) -> str:
    """The punctuation behind a value that belongs to the sentence; one character is always the value's."""
    return value[max(1, len(value.rstrip(_SENTENCE))) :]
