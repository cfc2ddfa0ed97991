"""Why somebody's function failed, in words that may stand in logs and topics: without what URLs keep secret."""

from __future__ import annotations

import re

from leftfold.errors import ContractError
from leftfold.printable import shown
from leftfold.veil import veiled

__all__ = ["LOOKED_AT", "looked_at", "reason_of"]

LOOKED_AT = 8000
_LONGEST = 2000
_WORD = re.compile(r"\S+")


def reason_of(error: BaseException) -> str:
    """The kind and the message of an error, at most 2,000 characters."""
    text = shown(error, str)
    told = text if isinstance(error, ContractError) else ": ".join(filter(None, (type(error).__name__, text)))
    return veiled(looked_at(told))[:_LONGEST]


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
