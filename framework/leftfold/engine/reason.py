"""Why somebody's function failed, in words that may stand in logs and topics: without what URLs keep secret."""

from __future__ import annotations

import re

from leftfold import veil
from leftfold.errors import ContractError

__all__ = ["reason_of", "veiled"]

_LONGEST = 2000
_END = r"(?=['\")\]},.;:]*(?:[&#\s\"<>]|$))"
_LOGIN = re.compile(r"(?<=://)\S+@")
_VALUE = re.compile(rf"(?<=[?&#])([\w.~%+\[\]-]+)=[^&#\s\"<>]+?{_END}")
_QUERY = re.compile(rf"(/[^\s?]*\?)[^&=#\s\"<>]+?{_END}")


def reason_of(error: BaseException) -> str:
    """The kind and the message of an error, at most 2,000 characters."""
    told = veiled(str(error) if isinstance(error, ContractError) else f"{type(error).__name__}: {error}")
    return veil.veiled(told)[:_LONGEST]


def veiled(text: str) -> str:
    """The text without logins, and without values of queries and fragments, in its URLs.

    Tokens are kept there. Of one in a path nobody can tell that it is one.
    """
    return _QUERY.sub(r"\1***", _VALUE.sub(r"\1=***", _LOGIN.sub("***@", text)))
