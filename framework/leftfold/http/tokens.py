"""Positions as tokens in headers and query parameters."""

from __future__ import annotations

import base64
import binascii

from leftfold.errors import ContractError
from leftfold.http.problems import refusal
from leftfold.model.position import Position

__all__ = ["POSITION_HEADER", "position_in", "token_of"]

POSITION_HEADER = "Leftfold-Position"


def token_of(position: Position) -> str:
    """The token of a position: the base64url form of its JSON."""
    return base64.urlsafe_b64encode(position.to_json().encode()).decode().rstrip("=")


def position_in(token: str) -> Position:
    """The position in a token.

    Raises:
        ProblemError: it is no token of a position.
    """
    try:
        return Position.from_json(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, ContractError) as error:
        raise refusal(400, f"{token[:80]!r} is no position; use the {POSITION_HEADER} of an answer") from error
