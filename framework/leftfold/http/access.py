"""Who may call the gateway: API keys by their hash, and a hook for rules of one's own."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fastapi import Request

from leftfold.http.problems import refusal
from leftfold.model.messages import Command

__all__ = ["Access", "Authorize", "Principal", "hash_of"]


@dataclass(frozen=True)
class Principal:
    """Who calls: a name, '' without authentication."""

    name: str = ""


Authorize: TypeAlias = Callable[[Principal, str, str], bool]
"""Whether a principal may do something: (principal, "command", "orders.Place") or (principal, "view", "sums")."""


def hash_of(key: str) -> str:
    """The hash under which an API key is configured."""
    return hashlib.sha256(key.encode()).hexdigest()


def _allow(principal: Principal, kind: str, name: str) -> bool:
    """Allows everything."""
    return True


@dataclass(frozen=True)
class Access:
    """The rules of a gateway.

    Args:
        keys: the name of the caller by the hash of its API key; empty = no authentication.
        authorize: whether a caller may send a command or read; everything is allowed without one.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    authorize: Authorize = _allow

    def principal(self, request: Request) -> Principal:
        """Who sent a request.

        Raises:
            ProblemError: 401: its API key is missing or unknown.
        """
        if not self.keys:
            return Principal()
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        found = hash_of(given)
        for known, name in self.keys.items():
            if hmac.compare_digest(found, known):
                return Principal(name)
        raise refusal(401, "send the API key in the header X-API-Key, or as Authorization: Bearer KEY")

    def check_command(self, request: Request, command: type[Command]) -> Principal:
        """Checks that a request may send a command.

        Raises:
            ProblemError: 401 or 403.
        """
        spec = command.__leftfold__
        return self._check(request, "command", f"{spec.category}.{spec.name}")

    def check_view(self, request: Request, name: str) -> Principal:
        """Checks that a request may read a view. Raises ProblemError: 401 or 403."""
        return self._check(request, "view", name)

    def check_stream(self, request: Request, category: str) -> Principal:
        """Checks that a request may read the events of a category. Raises ProblemError: 401 or 403."""
        return self._check(request, "stream", category)

    def _check(self, request: Request, kind: str, name: str) -> Principal:
        principal = self.principal(request)
        if not self.authorize(principal, kind, name):
            raise refusal(403, f"{principal.name or 'this caller'} may not use {kind} {name}")
        return principal
