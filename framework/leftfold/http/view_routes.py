"""Views over HTTP: rows by key, by indexed fields, in order, and page by page, with their types."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, create_model

from leftfold.client.async_reader import CursorError, Page
from leftfold.client.reader import Reader, Views
from leftfold.client.results import Entry
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.http.access import Access
from leftfold.http.problems import error_responses, refusal
from leftfold.http.routes import (
    POSITION_HEADER,
    FirstConnection,
    is_known,
    operation_name,
    position_in,
    query_schema,
    read_by_values,
    schema_name,
    token_of,
)
from leftfold.http.shortcuts import PlainRequest, Shortcut
from leftfold.model.position import Position
from leftfold.model.row_codec import ordered, value_of_text
from leftfold.model.view import View

__all__ = ["TypedView", "ViewRoutes"]
_BETWEEN = Query(description="An indexed field, with ends of a range.")
_TOP = Query(description="An indexed field, whose first rows are wanted.")
_END = Query(description="An end of the range of `between`.")
_FIELDS = Query(include_in_schema=False, description="Only these fields, with commas between.")
_AS_OF = Query(description="The name of a view as of a place in the past.")
_AFTER = Query(description=f"Wait until the view includes this {POSITION_HEADER}.", max_length=32_000)
_TIMEOUT = Query(ge=0, le=60, description="Seconds to wait for `after`.")
_READ = error_responses(400, 401, 403, 431, 500, 503, 504)
_POSITION = {POSITION_HEADER: {"description": "The position that the view includes.", "schema": {"type": "string"}}}
_ETAG = {"ETag": {"description": "The version of the row.", "schema": {"type": "string"}}}
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{0,8000}")
_OWN = frozenset({"between", "at_least", "above", "at_most", "below", "top", "order", "cursor", "limit", "after",
                  "timeout", "fields", "as_of"})  # fmt: skip
"""Query parameters that are no indexed fields."""
_NOT_COUNTED = ("top", "order", "cursor", "limit", "fields")
"""Those of a search that a count does not have."""


class TypedView:
    """A view with the types of its keys, indexes and rows, as requests write and answers show them."""

    def __init__(self, view: View[Any, Any]) -> None:
        self.view = view
        title = schema_name(view.name)
        row: Any = create_model(
            f"{title}Entry", __doc__="A row with its key.", key=(str, ...), row=(view.rows.row, ...)
        )
        self.rows: type[BaseModel] = create_model(
            f"{title}Rows",
            __doc__="Rows with their keys; `cursor` continues a scan, and `more` says whether there may be more rows.",
            rows=(list[row], ...),
            cursor=(str | None, None),
            more=(bool, False),
        )
        self.indexes: Any = Literal[tuple(view.rows.indexes)] if view.rows.indexes else str

    def parameters(self) -> dict[str, Any]:
        """The query parameters for equal values of indexed fields, which are read from the request itself."""
        found = [
            {"in": "query", "name": name, "required": False, "schema": query_schema(type_),
             "description": f"Only rows with this {name}" + ("; null = none." if NoneType in get_args(type_) else ".")}
            for name, type_ in self.view.rows.index_types.items()
            if name not in _OWN
        ]  # fmt: skip
        return {"parameters": found} if found else {}

    def key_in(self, request: Request, text: str) -> Any:
        """The key in a path: parts have / between them, and one within a part is %2F.

        A client that quotes the whole key, as generated ones do, is understood, too.
        """
        forms = self._forms_in(request, text) if self.view.keys.composite else []
        return self._read_key(*forms, text)

    def key_named(self, text: str) -> str:
        """The key that a query parameter names, as answers show it."""
        return self.key_of(self._read_key(text))

    def _forms_in(self, request: Request, text: str) -> list[str]:
        """The key in a path as it was sent: %2F within a part is not yet a /."""
        path: str = request.scope["path"]
        raw = request.scope.get("raw_path", quote(path).encode()).decode("ascii")
        for _ in range(path.removesuffix(text).count("/")):
            raw = raw.partition("/")[2]
        # With a %2F in front of the key, this is another end of the path, and so another key than rules are asked for.
        return [raw] if unquote(raw) == text else []

    def _read_key(self, *forms: str) -> Any:
        """The key in the first of these forms with a text for each part, or in the last one."""
        keys, text = self.view.keys, forms[-1]
        split = (form.split("/") for form in forms if keys.composite)
        parts = next(([unquote(part) for part in found] for found in split if len(found) == len(keys.parts)), text)
        try:
            keys.encode(key := keys.read(parts))
        except (ValueError, ContractError) as error:
            raise refusal(400, f"{text[:80]!r} is no key of view {self.view.name}: {str(error)[:200]}") from error
        return key

    def key_of(self, key: Any) -> str:
        """A key as a text that is understood in a path when it is quoted as a whole."""
        text = self.view.keys.encode(key)
        return text if self.view.keys.composite else unquote(text)

    def equal_in(self, request: Request) -> dict[str, Any]:
        """The values of indexed fields among the query parameters."""
        given = [(name, text) for name, text in request.query_params.multi_items() if name not in _OWN]
        if len(dict(given)) < len(given):
            raise refusal(400, "a field is given twice; rows are found by one value of each")
        return {name: self.value(name, text) for name, text in given}

    @staticmethod
    def waiting(after: str | None, timeout: float) -> dict[str, Any]:
        """The arguments of a read that waits; none when it does not: an index may have their names."""
        return {"after": position_in(after), "timeout": timeout} if after else {}

    def limited(self, limit: int) -> dict[str, Any]:
        """The argument of a search for so many rows; none when an index has its name."""
        return {} if "limit" in self.view.rows.indexes else {"limit": limit}

    def ends_in(self, field: str, ends: Mapping[str, str]) -> dict[str, Any]:
        """The typed ends of a range of an indexed field."""
        for one, other in (("at_least", "above"), ("at_most", "below")):
            if {one, other} <= ends.keys():
                raise refusal(400, f"{one} and {other} are two ends on one side; give one of them")
        self.check_index(field)
        return {name: self.value(field, text) for name, text in ends.items()}

    def value(self, field: str, text: str) -> Any:
        """The value of an indexed field from a query parameter; `null` is none where that may be none."""
        self.check_index(field)
        type_ = self.view.rows.index_types[field]
        if text == "null" and NoneType in get_args(type_):
            return None
        try:
            value = value_of_text(type_, text)
            if isinstance(value, datetime) and value.tzinfo is None:
                raise ValueError("it has no time zone")
            ordered(value)
        except (ValueError, ContractError) as error:
            raise refusal(400, f"{text[:80]!r} is no value of {self.view.name}.{field}") from error
        return value

    def check_index(self, field: str) -> None:
        """Refuses a field without an index."""
        if field not in self.view.rows.index_types:
            known = ", ".join(self.view.rows.indexes) or "none"
            raise refusal(400, f"view {self.view.name} has no index on {field[:80]!r}; it has {known}")

    def headers_of(self, entry: Entry[Any]) -> dict[str, str]:
        """The headers of the answer with a row."""
        found = {POSITION_HEADER: token_of(entry.position)}
        if entry.version is not None:
            # The same version in a rebuilt generation may be another row: other code has folded it.
            found["ETag"] = f'"{entry.version}-{entry.generation}"'
        return found

    def one(self, entry: Entry[Any], key: str, fields: str | None) -> Response:
        """The answer with a row.

        Raises:
            ProblemError: 404: there is none.
        """
        if entry.row is None:
            raise refusal(404, f"view {self.view.name} has no row for {key[:80]!r}")
        if fields is not None:
            return JSONResponse(self.shown(entry.row, fields), headers=self.headers_of(entry))
        body = self.view.rows.to_json(entry.row)
        return Response(body, headers=self.headers_of(entry), media_type="application/json")

    def shown(self, row: Any, fields: str | None) -> dict[str, Any]:
        """A row as JSON, with all fields or some."""
        found: dict[str, Any] = self.view.rows.shown(row)
        if fields is None:
            return found
        wanted = [name.strip() for name in fields.split(",")]
        if unknown := [name for name in wanted if name not in found]:
            raise refusal(400, f"the row has no field {unknown[0][:80]!r}; it has {', '.join(found)}")
        return {name: found[name] for name in wanted}

    def answer(
        self, rows: Iterable[tuple[Any, Any]], fields: str | None, cursor: str | None, *, more: bool
    ) -> Response:
        """Rows as an answer."""
        shown = [{"key": self.key_of(key), "row": self.shown(row, fields)} for key, row in rows]
        return JSONResponse({"rows": shown, "cursor": cursor, "more": more})


class Count(BaseModel):
    """A number of rows."""

    count: int


async def _ends(  # not on one of the forty threads, for which others may have to wait
    at_least: Annotated[str | None, _END] = None,
    above: Annotated[str | None, _END] = None,
    at_most: Annotated[str | None, _END] = None,
    below: Annotated[str | None, _END] = None,
) -> dict[str, str]:
    """The ends of a range, as query parameters: one at most on each side."""
    ends = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    return {name: text for name, text in ends.items() if text is not None}


class ViewRoutes:
    """The routes of views."""

    def __init__(self, views: FirstConnection[Views], access: Access) -> None:
        self._views, self._access = views, access
        self.shortcuts: dict[str, Shortcut] = {}
        """The shortcuts of reads by key, by the path before the key."""

    def add(self, router: APIRouter, view: View[Any, Any]) -> None:
        """Adds the routes of a view."""
        typed = TypedView(view)
        self._add_row(router, typed)
        self._add_search(router, typed)
        self._add_count(router, typed)

    def _add_row(self, router: APIRouter, typed: TypedView) -> None:
        view = typed.view

        async def get(
            request: Request,
            key: Annotated[str, Path(description="The key; parts of a key have / between them.", min_length=1)],
            after: Annotated[str | None, _AFTER] = None,
            timeout: Annotated[float, _TIMEOUT] = 2.0,
            fields: Annotated[str | None, _FIELDS] = None,
            as_of: Annotated[str, _AS_OF] = "",
            if_none_match: Annotated[str | None, Header(description="The ETag of a row that is known.")] = None,
        ) -> Response:
            wanted = await self._allowed_key(request, typed, key)
            position = position_in(after) if after else None
            async with self._reading(view, as_of) as reader:
                entry = await reader.aentry(wanted, after=position, timeout=timeout)
            headers = typed.headers_of(entry)
            known = request.headers.getlist("if-none-match")
            if if_none_match is not None and "ETag" in headers and is_known(headers["ETag"], known):
                return Response(status_code=304, headers=headers)
            return typed.one(entry, key, fields)

        async def get_plainly(plain: PlainRequest) -> Response | None:
            """The row of a key that is one part, now or behind a position."""
            _, _, after = plain.query.partition(b"after=")
            if (plain.query and plain.query != b"after=" + after) or not _TOKEN.fullmatch(after) or view.keys.composite:
                return None
            wanted = await self._allowed_key(plain.request, typed, plain.rest)
            position = position_in(after.decode()) if after else None
            async with self._reading(view, "") as reader:
                return typed.one(await reader.aentry(wanted, after=position), plain.rest, None)

        self.shortcuts[f"/views/{view.name}"] = get_plainly
        not_modified: dict[int | str, dict[str, Any]] = {304: {"description": "The row is at the version of the ETag."}}
        router.get(
            f"/views/{view.name}/{{key:text}}", summary=f"The row of a key in {view.name}",
            operation_id=f"get_{operation_name(view.name)}", response_model=view.rows.row,
            name=f"row of {view.name}", tags=[f"view {view.name}"],
            responses={200: {"headers": {**_POSITION, **_ETAG}}, **not_modified, **_READ, **error_responses(404)},
        )(get)  # fmt: skip

    def _add_search(self, router: APIRouter, typed: TypedView) -> None:
        view = typed.view

        async def search(
            request: Request,
            ends: Annotated[dict[str, str], Depends(_ends)],
            between: Any = None,
            top: Any = None,
            order: Annotated[Literal["largest", "smallest"], Query(description="The order of `top`.")] = "largest",
            cursor: Annotated[str, Query(description="Continues a scan; from the answer before.")] = "",
            limit: Annotated[int, Query(ge=1, le=1000, description="The most rows.")] = 100,
            after: Annotated[str | None, _AFTER] = None,
            timeout: Annotated[float, _TIMEOUT] = 2.0,
            fields: Annotated[str | None, _FIELDS] = None,
            as_of: Annotated[str, _AS_OF] = "",
        ) -> Response:
            await self._access.check_view(request, view.name)
            equal = typed.equal_in(request)
            _check_one(ends, equal=equal, between=between, top=top, cursor=cursor)
            waiting = typed.waiting(after, timeout)
            async with self._reading(view, as_of) as reader:
                # One more row than wanted tells whether there are more.
                if between is not None:
                    found = await reader.abetween(between, **typed.ends_in(between, ends), limit=limit + 1, **waiting)
                elif top is not None:
                    typed.check_index(top)
                    found = await reader.atop(top, limit + 1, smallest=order == "smallest", **waiting)
                elif equal:
                    options = {**typed.limited(limit + 1), **waiting}
                    found = await read_by_values(reader, reader.find, reader.afind, equal, options)
                else:
                    page = await _page(reader, cursor, limit, **waiting)
                    return typed.answer(page.rows, fields, cursor=page.cursor, more=page.cursor is not None)
            return typed.answer(list(found.items())[:limit], fields, cursor=None, more=len(found) > limit)

        search.__annotations__["between"] = Annotated[typed.indexes | None, _BETWEEN]
        search.__annotations__["top"] = Annotated[typed.indexes | None, _TOP]
        router.get(
            f"/views/{view.name}", summary=f"Rows of {view.name}",
            operation_id=f"find_{operation_name(view.name)}", response_model=typed.rows,
            name=f"rows of {view.name}", tags=[f"view {view.name}"],
            responses={**_READ, **error_responses(404, 410)}, openapi_extra=typed.parameters(),
        )(search)  # fmt: skip

    def _add_count(self, router: APIRouter, typed: TypedView) -> None:
        view = typed.view

        async def count(
            request: Request,
            ends: Annotated[dict[str, str], Depends(_ends)],
            between: Any = None,
            after: Annotated[str | None, _AFTER] = None,
            timeout: Annotated[float, _TIMEOUT] = 2.0,
            as_of: Annotated[str, _AS_OF] = "",
        ) -> Count:
            await self._access.check_view(request, view.name)
            equal = typed.equal_in(request)
            _check_one(ends, equal=equal, between=between)
            if others := [name for name in _NOT_COUNTED if name in request.query_params]:
                raise refusal(400, f"a count has no {others[0]}; it counts all rows, those of a value or of a range")
            waiting = typed.waiting(after, timeout)
            async with self._reading(view, as_of) as reader:
                if between is not None:
                    return Count(count=await reader.acount_between(between, **typed.ends_in(between, ends), **waiting))
                return Count(count=await read_by_values(reader, reader.count, reader.acount, equal, waiting))

        count.__annotations__["between"] = Annotated[typed.indexes | None, _BETWEEN]
        router.get(
            f"/views/{view.name}:count", summary=f"The number of rows of {view.name}",
            operation_id=f"count_{operation_name(view.name)}", name=f"count of {view.name}", tags=[f"view {view.name}"],
            responses={**_READ, **error_responses(404)}, openapi_extra=typed.parameters(),
        )(count)  # fmt: skip

    async def _allowed_key(self, request: Request, typed: TypedView, text: str) -> Any:
        """The key in a path, if the caller may read its row; a rule sees the key as answers show it."""
        await self._access.principal(request)
        key = typed.key_in(request, text)
        await self._access.check_view(request, typed.view.name, typed.key_of(key))
        return key

    @asynccontextmanager
    async def _reading(self, view: View[Any, Any], name: str) -> AsyncIterator[Reader[Any, Any]]:
        """The reader of a view, or of one as of the past; a name that there is not is the caller's mistake."""
        views = await self._views.client()
        try:
            yield views.as_of(view, name) if name else views[view]
        except ViewNotBuilt as error:
            raise refusal(404, str(error)) if name else error from error
        except ContractError as error:  # what callers give is checked before
            raise refusal(500, str(error)) from error


async def _page(
    reader: Reader[Any, Any], cursor: str, limit: int, after: Position | None = None, timeout: float = 2.0
) -> Page[Any, Any]:
    """A page of a scan; a view that is behind `after` is waited for first."""
    if after is not None:
        await reader.await_reached(after, timeout=timeout)
    try:
        return await reader.ascan(cursor=cursor, limit=limit)
    except (CursorError, ViewNotBuilt) as error:
        if not cursor:
            raise
        raise refusal(410 if isinstance(error, ViewNotBuilt) else 400, str(error)) from error


def _check_one(ends: Mapping[str, str], **searches: Any) -> None:
    """Refuses two searches at once, and ends without their range: only a part would be answered."""
    if len(given := [name for name, value in searches.items() if value]) > 1:
        both = " and ".join(given).replace("equal", "the value of a field")
        raise refusal(400, f"{both} are two ways to choose rows; give one of them")
    if ends and searches["between"] is None:
        raise refusal(400, "at_least, above, at_most and below are ends of `between`; name its field")
