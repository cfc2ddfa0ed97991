"""Errors as problem details (RFC 9457): every answer that is no success has this form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from leftfold.errors import (
    ChangesNotKept,
    ConflictError,
    ContractError,
    DecisionFailed,
    DomainError,
    InfrastructureError,
    LeftfoldError,
    StaleViewError,
    ViewNotBuilt,
)

__all__ = ["PROBLEM_JSON", "Problem", "ProblemError", "error_responses", "problem_of", "refusal"]

PROBLEM_JSON = "application/problem+json"
_STATUS: Mapping[type[LeftfoldError], tuple[int, str]] = {
    ConflictError: (409, "the stream is at another version"),
    DecisionFailed: (500, "deciding failed"),
    ContractError: (400, "the command cannot be sent"),
    StaleViewError: (504, "the view has not reached the position"),
    ChangesNotKept: (410, "the changes are no longer kept"),
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
    412: "the stream is at another version",
    413: "the body is too large",
    422: "rejected by a business rule",
    431: "the headers are too large",
    500: "internal error",
    503: "not available",
    504: "the view has not reached the position",
}


class Problem(BaseModel):
    """A problem; `error` and `fields` name a domain error and its values."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""


class ProblemError(Exception):
    """A problem that a handler raises."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
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
            code = 412 if isinstance(error, ConflictError) and has_precondition else status
            return Problem(title=title, status=code, detail=str(error), **more)
    return Problem(title=_TITLES[500], status=500, detail=str(error) if isinstance(error, LeftfoldError) else "")


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The entries of an OpenAPI document for these problems."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _TITLES[status], "content": {PROBLEM_JSON: {"schema": schema}}} for status in statuses
    }
