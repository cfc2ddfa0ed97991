"""Why somebody's function failed, in words that may stand in logs and topics: without what URLs keep secret."""

from __future__ import annotations

import re
from collections.abc import Iterator

from leftfold import veil
from leftfold.errors import ContractError

__all__ = ["LOOKED_AT", "looked_at", "reason_of", "veiled"]

LOOKED_AT = 8000
_LONGEST = 2000
_SENTENCE = "')]},.;:"  # the end of a sentence or quotation behind a URL is no part of it
_WORD = re.compile(r"\S+")
_VALUE = re.compile(r"(?<=[?&#])([\w.~%+\[\]-]+)=([^&#\s\"<>]+)")
_PATH = re.compile(r"[^\s?]+")
_BARE = re.compile(r"[^&=#\s\"<>]*")


def reason_of(error: BaseException) -> str:
    """The kind and the message of an error, at most 2,000 characters."""
    told = str(error) if isinstance(error, ContractError) else f"{type(error).__name__}: {error}"
    return veil.veiled(veiled(looked_at(told)))[:_LONGEST]


def looked_at(text: str) -> str:
    """The beginning of a text, long enough that what is shown of it was looked at with all that belongs to it.

    A word that goes on behind the end may be a URL whose login ends there, so it ends at its `://`.
    """
    start = text[:LOOKED_AT]
    if len(text) <= LOOKED_AT or text[LOOKED_AT].isspace():
        return start
    *_, last = (word.start() for word in _WORD.finditer(start + "."))
    head, url, _ = start[last:].partition("://")
    return start[:last] + head + (f"{url}***" if url else "")


def veiled(text: str) -> str:
    """The text without logins, and without values of queries and fragments, in its URLs.

    Tokens are kept there. Of one in a path nobody can tell that it is one. The time is linear in the text's length.
    """
    text = _WORD.sub(_without_login, text)
    text = _VALUE.sub(lambda found: f"{found[1]}=***{_behind(found[2])}", text)
    return "".join(_without_bare_queries(text))


def _without_login(word: re.Match[str]) -> str:
    scheme, url, rest = word[0].partition("://")
    login, at, host = rest.rpartition("@")
    return f"{scheme}{url}***@{host}" if at and login else word[0]


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
            yield f"{text[told:begin]}***"
            told = bare - len(_behind(text[begin:bare]))
    yield text[told:]


def _behind(value: str) -> str:
    """What follows a value and belongs to the sentence around it; one character is always the value's."""
    return value[max(1, len(value.rstrip(_SENTENCE))) :]
