"""Text for people and logs without what it should not tell: logins, passwords, tokens.

Every address that is printed and every error that is told goes through `veiled`. It takes time in proportion to the
text, whatever stands in it.
"""

from __future__ import annotations

import re

__all__ = ["veiled"]

_HIDDEN = "***"
# How messages write where a login would stand.
_LOGIN_SHAPE = "[user:password"
_WORD = re.compile(r"\S+")
_QUERY = re.compile(r"(?<=[?&#])([\w.~%+\[\]-]{1,100})=[^&#\s\"'<>]+")
_PLACE = re.compile(r"[\w.\-\[\]]+:\d{2,5}(?!\d)")
_NAME = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|signature|api[_-]?key|(?:access|private|account)[_-]?key)"
)
_QUOTED = r"b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*'"
_NAMED = re.compile(
    rf"({_NAME}[\w.-]{{0,60}}[\"'\\]{{0,4}})"
    # After a colon and a space stands prose, unless it is quoted or one word to the end of the line.
    rf"(?:(\s?=\s?|(?<!\.py):)(?:{_QUOTED}|[^\s&]+)|(:\s)(?:{_QUOTED}|[^\s&]+(?=\s*(?:$|\n))))",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic) [\w.~+/=-]{4,}", re.IGNORECASE)


def veiled(text: str) -> str:
    """The text without logins in its addresses, without values in their queries, and without named secrets."""
    text = _NAMED.sub(lambda found: f"{found[1]}{found[2] or found[3]}{_HIDDEN}", text)
    return _BEARER.sub(rf"\1 {_HIDDEN}", _WORD.sub(lambda word: _without_login(word[0]), text))


def _without_login(word: str) -> str:
    """A word; in a URL with all that may belong to a password, which people do not always encode."""
    begin, last = word.find("://"), word.rfind("@")
    if begin >= 0:
        if last > begin and word[begin + 3 : last] != _LOGIN_SHAPE:
            word = f"{word[: begin + 3]}{_HIDDEN}{word[last:]}"
        return _QUERY.sub(rf"\1={_HIDDEN}", word)
    if ":" in word[: max(last, 0)] and _PLACE.match(word, last + 1):
        return f"{_HIDDEN}{word[last:]}"
    return word
