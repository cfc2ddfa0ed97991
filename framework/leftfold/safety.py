"""Guards against hostile input: files of other users, text that controls a terminal, secrets in messages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["is_foreign", "printable", "printable_json", "shown", "veiled"]


def is_foreign(path: Path) -> bool:
    """Whether a file or directory belongs neither to this user nor to root; never where systems know no users."""
    return hasattr(os, "geteuid") and path.stat().st_uid not in (0, os.geteuid())


# C0, DEL and C1; the marks and controls of writing directions; what separates lines and paragraphs; lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BYTE = 0x100


def printable(text: str) -> str:
    r"""The text with `\xNN` or `\uNNNN` for every character that is not to be printed, newlines included."""
    return _UNSAFE.sub(_named, text)


def printable_json(text: str) -> str:
    r"""JSON of one line with `\uNNNN` for the same characters: it says exactly the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """What `repr` or `str` says of an object of user code, which may raise: it must not where an error is told."""
    try:
        return form(value)
    except Exception as error:  # noqa: BLE001  # whatever it raises
        return f"<{type(value).__name__}, of which {form.__name__}() raises {type(error).__name__}>"


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < _BYTE else f"\\u{code:04x}"


_HIDDEN = "***"
# How messages write where a login would stand.
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
    # A value of a query ends where one of a quoted list does, since another secret may follow that; of a secret a `#`
    # may be part.
    rf"(?<=[?&#])(?P<query>(?:[\w.~%+\[\]-]{{0,60}}?(?P<secret>{_WORDS}))?[\w.~%+\[\]-]*(?<=[\w.~%+\[\]-])=)"
    r"(?P<value>(?:[^&#\s\"<>']|'(?!,)|(?(secret)\#|(?!)))+)"
    # After a colon and a space stands prose, unless it is one word to the end of the line.
    rf"|(?P<named>{_NAME}(?:\s?=\s?|(?<!\.py):))(?!\*\*\*(?:[^\w*]|$))[^\s&]+"
    rf"|(?P<line>{_NAME}:\s)[^\s&]+(?=\s*(?:$|\n))",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic) [\w.~+/=-]{4,}", re.IGNORECASE)


def veiled(text: str) -> str:
    """The text without logins in addresses, without values of queries and fragments, and without named secrets.

    Names of values are kept. Of a token in a path nobody can tell that it is one.
    """
    text = _QUOTED.sub(rf"\1{_HIDDEN}", text)  # first, since the text between quotes may look like anything
    text = _WORD.sub(_without_login, text)
    text = _VALUE.sub(_without_value, text)
    return _BEARER.sub(rf"\1 {_HIDDEN}", "".join(_without_bare_queries(text)))


def _without_login(found: re.Match[str]) -> str:
    """A word; in a URL without all that may belong to a password, which people do not always encode."""
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
    """Pieces of the text, in which `/path?value` lost a value that has no name."""
    told = bare = 0  # how far the text is told, and where the last query that was looked at ends
    for path in _PATH.finditer(text):
        begin = path.end() + 1
        if text[path.end() : begin] != "?" or text.find("/", max(told, path.start()), path.end()) < 0:
            continue
        if begin > bare:
            bare = next(_BARE.finditer(text, begin)).end()
        if begin < bare and text[bare : bare + 1] != "=":
            yield f"{text[told:begin]}{_HIDDEN}"
            told = bare - len(_behind(text[begin:bare]))
    yield text[told:]


def _behind(value: str) -> str:
    """What follows a value and belongs to the sentence around it; one character is always the value's."""
    return value[max(1, len(value.rstrip(_SENTENCE))) :]
