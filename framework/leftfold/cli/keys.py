"""Row keys as people type them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

from leftfold.cli.failures import Usage
from leftfold.keys import NO_ROW
from leftfold.view import View

__all__ = ["encoded_key", "read_key"]


def encoded_key(view: View[Any, Any], text: str) -> str:
    """The encoded key that is meant, or NO_ROW, as it is shown where rows are parked.

    Raises:
        Usage: it is no key of this view.
    """
    return text if text == NO_ROW else view.keys.encode(read_key(view, text))


def read_key(view: View[Any, Any], text: str) -> Any:
    """The key that is meant; a key of several parts is typed with / between them.

    Raises:
        Usage: it is no key of this view.
    """
    keys = view.keys
    parts = text.split("/", len(keys.parts) - 1) if keys.composite else [text]
    try:
        if len(parts) != len(keys.parts):
            raise ValueError(f"it has {len(parts)} of {len(keys.parts)} parts")
        key = keys.decode("/".join(quote(part, safe="") for part in parts))
        for part in key if isinstance(key, tuple) else (key,):
            if isinstance(part, datetime) and part.tzinfo is None:
                raise ValueError(f"{part.isoformat()} has no time zone; write {part.isoformat()}Z for UTC")
        return key
    except (ValueError, ArithmeticError, StopIteration) as error:
        raise Usage(f"{text!r} is no key of view {view.name}, which is {keys.name}: {error}") from error
