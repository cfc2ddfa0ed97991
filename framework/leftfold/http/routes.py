"""Routes of the gateway: errors as problem details, HEAD beside GET, and names of operations for generated clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from leftfold.errors import LeftfoldError
from leftfold.http.problems import problem_response, refusal

__all__ = ["ProblemRoute", "operation_name", "schema_name"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


def operation_name(name: str) -> str:
    """The name of a command class or view in the ids of operations: `OpenBasket` is open_basket."""
    return "_".join(word.lower() for word in _WORD.findall(name))


def schema_name(name: str) -> str:
    """The name of a view or category in the names of schemas: `basket_summary` is BasketSummary."""
    return "".join(word[:1].upper() + word[1:] for word in _WORD.findall(name))


class ProblemRoute(APIRoute):
    """A route whose errors are problem details in any application, and that answers HEAD where it answers GET."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the endpoint, with its errors as answers."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except (HTTPException, LeftfoldError, RequestValidationError) as error:
                return problem_response(error)

        return handle

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this route."""
        return super().matches(self._as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request for this path, also one with another method."""

        async def send_head(message: Message) -> None:
            # The answer ends here: the body of a stream has no end, and the connection is wanted for the next request.
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        is_head = scope["method"] == "HEAD"
        try:
            await super().handle(self._as_get(scope), receive, send_head if is_head else send)
        except HTTPException as error:
            if error.status_code != 405:
                raise
            methods = self.methods or set()
            allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
            problem = refusal(405, f"{scope['method']} is not among {', '.join(allowed)}")
            problem.headers = {"Allow": ", ".join(allowed)}
            await problem_response(problem)(scope, receive, send)

    def _as_get(self, scope: Scope) -> Scope:
        return {**scope, "method": "GET"} if scope.get("method") == "HEAD" and "GET" in (self.methods or ()) else scope
