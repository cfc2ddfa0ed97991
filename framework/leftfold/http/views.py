"""Views over HTTP: rows by key, by indexed fields, in order, and page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from leftfold.client.reader import Reader, Views
from leftfold.errors import ConfigurationError
from leftfold.http.access import Access
from leftfold.http.first_connection import FirstConnection
from leftfold.http.problems import error_responses, refusal
from leftfold.http.tokens import POSITION_HEADER, position_in, token_of
from leftfold.model.view import View

__all__ = ["ViewRoutes"]

_OWN = frozenset({"cursor", "limit", "after", "timeout", "between", "at_least", "above", "at_most", "below", "top",
                  "order", "count", "fields", "as_of"})  # fmt: skip
"""Query parameters that are no indexed fields."""
_END = Query(description="An end of the range of `between`, as JSON or text.")
_AFTER = Query(description=f"Wait until the view includes this {POSITION_HEADER}.", max_length=8000)
_TIMEOUT = Query(ge=0, le=60, description="Seconds to wait for `after`.")


class Rows(BaseModel):
    """Rows with their keys; `cursor` asks for the next page, null at the end."""

    rows: list[dict[str, Any]]
    cursor: str | None = None


class ViewRoutes:
    """The routes of views."""

    def __init__(self, connect: Callable[[], Views], access: Access) -> None:
        self._connection, self._access = FirstConnection(connect), access

    def add(self, router: APIRouter, view: View[Any, Any]) -> None:
        """Adds the routes of a view."""
        common: dict[str, Any] = {"tags": [f"view {view.name}"]}
        errors = error_responses(400, 401, 403, 503, 504)

        async def get(
            request: Request,
            key: Annotated[str, Path(description="The key; parts of a key have / between them.")],
            after: Annotated[str | None, _AFTER] = None,
            timeout: Annotated[float, _TIMEOUT] = 2.0,
            fields: Annotated[str | None, Query(description="Only these fields, with commas between.")] = None,
            as_of: Annotated[str, Query(description="The name of a view as of a place in the past.")] = "",
            if_none_match: Annotated[str | None, Header()] = None,
        ) -> Response:
            self._access.check_view(request, view.name)
            try:
                typed = view.keys.read(key)
            except ValueError as error:
                raise refusal(400, f"{key[:80]!r} is no key of view {view.name}: {error}") from error
            position = position_in(after) if after else None
            entry = await (await self._reader(view, as_of)).aentry(typed, after=position, timeout=timeout)
            headers = {POSITION_HEADER: token_of(entry.position)}
            if entry.version is not None:
                headers["ETag"] = f'"{entry.version}"'
                if if_none_match is not None and headers["ETag"] in if_none_match:
                    return Response(status_code=304, headers=headers)
            if entry.row is None:
                raise refusal(404, f"view {view.name} has no row for {key[:80]!r}")
            return JSONResponse(_row(entry.row, fields), headers=headers)

        async def search(
            request: Request,
            cursor: Annotated[str, Query(description="Continues a scan; from the answer before.")] = "",
            limit: Annotated[int, Query(ge=1, le=1000)] = 100,
            after: Annotated[str | None, _AFTER] = None,
            timeout: Annotated[float, _TIMEOUT] = 2.0,
            between: Annotated[str | None, Query(description="An indexed field, with ends of a range.")] = None,
            at_least: Annotated[str | None, _END] = None,
            above: Annotated[str | None, _END] = None,
            at_most: Annotated[str | None, _END] = None,
            below: Annotated[str | None, _END] = None,
            top: Annotated[str | None, Query(description="An indexed field, whose first rows are wanted.")] = None,
            order: Annotated[Literal["largest", "smallest"], Query()] = "largest",
            count: Annotated[bool, Query(description="Only the number of rows.")] = False,
            fields: Annotated[str | None, Query(description="Only these fields, with commas between.")] = None,
            as_of: Annotated[str, Query(description="The name of a view as of a place in the past.")] = "",
        ) -> Response:
            self._access.check_view(request, view.name)
            reader = await self._reader(view, as_of)
            waiting: dict[str, Any] = {"after": position_in(after) if after else None, "timeout": timeout}
            named = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
            equal = {name: text for name, text in request.query_params.items() if name not in _OWN}
            try:
                if between is not None:
                    ends = {name: _typed(view, between, text) for name, text in named.items() if text is not None}
                    if count:
                        return JSONResponse({"count": await reader.acount_between(between, **ends, **waiting)})
                    found = await reader.abetween(between, **ends, limit=limit, **waiting)
                elif top is not None:
                    found = await reader.atop(top, limit, smallest=order == "smallest", **waiting)
                elif equal or count:
                    typed = {name: _typed(view, name, text) for name, text in equal.items()}
                    if count:
                        return JSONResponse({"count": await reader.acount(**typed, **waiting)})
                    found = await reader.afind(**typed, **waiting)
                else:
                    page = await reader.ascan(cursor=cursor, limit=limit)
                    return JSONResponse({"rows": _rows(view, page.rows, fields), "cursor": page.cursor})
            except ConfigurationError as error:
                raise refusal(400, str(error)) from error
            return JSONResponse({"rows": _rows(view, found.items(), fields), "cursor": None})

        row: dict[int | str, dict[str, Any]] = {
            200: {"description": "The row.", "content": {"application/json": {"schema": _schema(view)}}}
        }
        router.get(
            f"/views/{view.name}/{{key:path}}", summary=f"The row of a key in {view.name}", name=f"row of {view.name}",
            responses={**row, 304: {"description": "not modified"}, **error_responses(404), **errors}, **common,
        )(get)  # fmt: skip
        router.get(
            f"/views/{view.name}", summary=f"Rows of {view.name}", name=f"rows of {view.name}",
            responses={200: {"model": Rows}, **errors}, **common,
        )(search)  # fmt: skip

    async def _reader(self, view: View[Any, Any], name: str) -> Reader[Any, Any]:
        views = await self._connection.client()
        return views.as_of(view, name) if name else views[view]


def _schema(view: View[Any, Any]) -> dict[str, Any]:
    return TypeAdapter(view.rows.row).json_schema(mode="serialization", ref_template="#/components/schemas/{model}")


def _typed(view: View[Any, Any], field: str, text: str) -> Any:
    """The value of an indexed field from a query parameter; `null` is none."""
    if field not in view.rows.index_types:
        known = ", ".join(view.rows.indexes) or "none"
        raise refusal(400, f"view {view.name} has no index on {field[:80]!r}; it has {known}")
    if text == "null":
        return None
    try:
        return TypeAdapter(view.rows.index_types[field]).validate_strings(text)
    except ValidationError as error:
        raise refusal(400, f"{text[:80]!r} is no value of {view.name}.{field}") from error


def _row(row: Any, fields: str | None) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(row)
    if fields is None:
        return found
    wanted = [name.strip() for name in fields.split(",")]
    if unknown := [name for name in wanted if name not in found]:
        raise refusal(400, f"the row has no field {unknown[0][:80]!r}; it has {', '.join(found)}")
    return {name: found[name] for name in wanted}


def _rows(view: View[Any, Any], found: Iterable[tuple[Any, Any]], fields: str | None) -> list[dict[str, Any]]:
    return [{"key": view.keys.encode(key), "row": _row(row, fields)} for key, row in found]
