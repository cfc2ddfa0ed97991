"""Errors as problem details (RFC 9457): every answer that is no success has this form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from leftfold.errors import (
    ChangesNotKept,
    ConflictError,
    ContractError,
    DecisionFailed,
    DomainError,
    InfrastructureError,
    LeftfoldError,
    LogGap,
    OutcomeUnknown,
    StaleViewError,
    ViewNotBuilt,
)

__all__ = [
    "EVENT_STREAM",
    "PROBLEM_JSON",
    "Problem",
    "ProblemError",
    "error_responses",
    "problem_event",
    "problem_of",
    "problem_response",
    "refusal",
    "refusal_of",
]

PROBLEM_JSON, EVENT_STREAM = "application/problem+json", "text/event-stream"
_STATUS: Mapping[type[LeftfoldError], tuple[int, str]] = {
    OutcomeUnknown: (202, "the outcome is not known yet"),
    ConflictError: (409, "the stream is at another version"),
    DecisionFailed: (500, "deciding failed"),
    ContractError: (400, "the command cannot be sent"),
    StaleViewError: (504, "the view has not reached the position"),
    ChangesNotKept: (410, "the changes are no longer kept"),
    LogGap: (410, "the events are no longer kept"),
    ViewNotBuilt: (503, "the view is not built"),
    InfrastructureError: (503, "a server does not answer"),
}
_TITLES = {
    304: "not modified",
    400: "the request is malformed",
    401: "no valid credentials",
    403: "not allowed",
    404: "not found",
    405: "method not allowed",
    408: "the request took too long",
    409: "conflict",
    410: "no longer there",
    412: "the stream is at another version",
    413: "the body is too large",
    415: "another media type is needed",
    422: "rejected by a business rule",
    429: "too slow",
    431: "the headers are too large",
    500: "internal error",
    503: "not available",
    504: "the view has not reached the position",
}
_HEADERS: Mapping[int, Mapping[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
_RETRY_MS = 5000
_EVENT_ID = re.compile(r"[A-Za-z0-9_-]+")
_MOST_ERRORS, _LONGEST = 20, 200
"""How many errors of a body are named, and with how many characters of it: an answer is not larger than the request."""


class Problem(BaseModel):
    """A problem; `error` and `fields` name a domain error and its values."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""


class StaleViewProblem(Problem):
    """The problem of a view that is behind: the positions asked for and reached, as offsets by topic and partition."""

    asked: dict[str, dict[int, int]] = {}
    reached: dict[str, dict[int, int]] = {}


class ProblemError(HTTPException):
    """A problem that a handler raises; an application without handlers for it still answers with its status."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.detail)
        self.problem = problem


def refusal(status: int, detail: str, **more: Any) -> ProblemError:
    """The error of a request that is refused; `more` are further members of the problem."""
    return ProblemError(Problem(title=_TITLES.get(status, "error"), status=status, detail=detail, **more))


def problem_of(error: Exception, *, has_precondition: bool = False) -> Problem:
    """The problem for an error of a client or reader.

    Args:
        has_precondition: whether the request named an expected version: a conflict then has status 412.
    """
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, DomainError):
        name = type(error).__name__
        values = {one.name: getattr(error, one.name) for one in fields(error)}  # type: ignore[arg-type]  # a dataclass
        more: dict[str, Any] = {"error": name, "fields": to_jsonable_python(values)}
        return Problem(
            type=f"urn:leftfold:error:{name}",
            title=_TITLES[422],
            status=422,
            detail=str(error),
            **more,
        )
    for kind, (status, title) in _STATUS.items():
        if isinstance(error, kind):
            more = {}
            if isinstance(error, ConflictError):
                more = {"key": error.key, "expected": error.expected, "actual": error.actual}
            elif isinstance(error, StaleViewError):
                more = {name: at.offsets for name in ("asked", "reached") if (at := getattr(error, name)) is not None}
            code = 412 if isinstance(error, ConflictError) and has_precondition else status
            # The text of an exception of `decide` may hold anything, such as the state of the stream.
            detail = "the log of the worker says why" if isinstance(error, DecisionFailed) else str(error)
            return Problem(title=title, status=code, detail=detail, **more)
    return Problem(title=_TITLES[500], status=500, detail=str(error) if isinstance(error, LeftfoldError) else "")


def problem_event(problem: Problem) -> bytes:
    """A problem as a server-sent event."""
    return b"event: problem\ndata: " + _json(problem) + b"\n\n"


def problem_response(error: Exception, scope: Scope) -> Response:
    """The answer to a request that ended with an error.

    An EventSource ends for good with an answer that is no stream. A request that accepts nothing else gets what passes
    as an event, and comes back with the id that it had.
    """
    if isinstance(error, RequestValidationError) and isinstance(error.body, bytes):
        problem = refusal(415, "send the body as JSON, with the header Content-Type: application/json").problem
    elif isinstance(error, RequestValidationError):
        problem = refusal_of(error.errors()).problem
    elif isinstance(error, HTTPException) and not isinstance(error, ProblemError):
        problem = refusal(error.status_code, str(error.detail)).problem
    else:
        problem = problem_of(error)
    headers = {**_HEADERS.get(problem.status, {}), **(getattr(error, "headers", None) or {})}
    given = Headers(scope=scope)
    if (problem.status, scope["method"], given.get("accept")) != (503, "GET", EVENT_STREAM):
        return Response(_json(problem), problem.status, headers, PROBLEM_JSON)
    id_ = given.get("last-event-id", "")
    same_id = f"id: {id_}\n" if _EVENT_ID.fullmatch(id_) else ""
    body = f"retry: {_RETRY_MS}\n{same_id}".encode() + problem_event(problem)
    return Response(body, headers={"Cache-Control": "no-store"}, media_type=EVENT_STREAM)


def _json(problem: Problem) -> bytes:
    """ASCII, so that text of the request that UTF-8 cannot hold can be quoted."""
    return json.dumps(problem.model_dump(mode="json"), separators=(",", ":")).encode()


def _short(part: Any) -> Any:
    return part[:_LONGEST] if isinstance(part, str) else part


def refusal_of(errors: Sequence[Any]) -> ProblemError:
    """The error of a body or line that has these errors of pydantic."""
    wrong = [
        {"loc": [_short(part) for part in one["loc"]], "msg": _short(one["msg"]), "type": one["type"]}
        for one in errors[:_MOST_ERRORS]
    ]
    first = f"{'.'.join(map(str, wrong[0]['loc']))}: {wrong[0]['msg']}" if wrong else ""
    return refusal(400, first, errors=wrong)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The entries of an OpenAPI document for these problems."""
    models = {status: StaleViewProblem if status == 504 else Problem for status in statuses}
    found: dict[int | str, dict[str, Any]] = {}
    for status, model in models.items():
        content = {PROBLEM_JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
        found[status] = {"description": _TITLES[status], "content": content}
    # A model is what puts the schema among those of the document; FastAPI would describe it as plain JSON.
    for model, status in {model: status for status, model in reversed(models.items())}.items():
        found[status]["model"] = model
    return found
