"""Why somebody's function failed, in words that may stand in logs and topics: without what URLs keep secret."""

from __future__ import annotations

import re

from leftfold.errors import ContractError

__all__ = ["reason_of", "veiled"]

_LONGEST = 2000
_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]+@")
_VALUE = re.compile(r"(?<=[?&])([\w.~%+\[\]-]+)=[^&#\s'\"<>)]+")


def reason_of(error: BaseException) -> str:
    """The kind and the message of an error, at most 2,000 characters."""
    return veiled(str(error) if isinstance(error, ContractError) else f"{type(error).__name__}: {error}")[:_LONGEST]


def veiled(text: str) -> str:
    """The text without logins and values of queries in its URLs: these are where tokens are kept."""
    return _VALUE.sub(r"\1=***", _LOGIN.sub("***@", text))
