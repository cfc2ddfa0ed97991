"""Views over HTTP: rows by key, by indexed fields, in order, and page by page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel

from leftfold.client.async_reader import Page
from leftfold.client.reader import Reader, Views
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.http.access import Access
from leftfold.http.problems import error_responses, refusal
from leftfold.http.routes import POSITION_HEADER, FirstConnection, operation_name, position_in
from leftfold.http.shortcuts import PlainRequest, Shortcut
from leftfold.http.typed_views import TypedView
from leftfold.model.position import Position
from leftfold.model.view import View

__all__ = ["ViewRoutes"]

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


class Count(BaseModel):
    """A number of rows."""

    count: int


def _ends(
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
            if if_none_match is not None and "ETag" in headers and _is_known(headers["ETag"], known):
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
            _check_one(equal=equal, between=between, top=top, cursor=cursor)
            waiting = typed.waiting(after, timeout)
            async with self._reading(view, as_of) as reader:
                # One more row than wanted tells whether there are more.
                if between is not None:
                    found = await reader.abetween(between, **typed.ends_in(between, ends), limit=limit + 1, **waiting)
                elif top is not None:
                    typed.check_index(top)
                    found = await reader.atop(top, limit + 1, smallest=order == "smallest", **waiting)
                elif equal:
                    found = await reader.afind(**equal, **typed.limited(limit + 1), **waiting)
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
            _check_one(equal=equal, between=between)
            waiting = typed.waiting(after, timeout)
            async with self._reading(view, as_of) as reader:
                if between is not None:
                    return Count(count=await reader.acount_between(between, **typed.ends_in(between, ends), **waiting))
                return Count(count=await reader.acount(**equal, **waiting))

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


async def _page(
    reader: Reader[Any, Any], cursor: str, limit: int, after: Position | None = None, timeout: float = 2.0
) -> Page[Any, Any]:
    """A page of a scan; a view that is behind `after` is waited for first."""
    if after is not None:
        await reader.await_reached(after, timeout=timeout)
    try:
        return await reader.ascan(cursor=cursor, limit=limit)
    except (ContractError, ViewNotBuilt) as error:
        if not cursor:
            raise
        raise refusal(410 if isinstance(error, ViewNotBuilt) else 400, str(error)) from error


def _check_one(**searches: Any) -> None:
    """Refuses two searches at once: only one of them would be answered."""
    if len(given := [name for name, value in searches.items() if value]) > 1:
        both = " and ".join(given).replace("equal", "the value of a field")
        raise refusal(400, f"{both} are two ways to choose rows; give one of them")


def _is_known(etag: str, headers: Iterable[str]) -> bool:
    """Whether If-None-Match names the ETag; it compares weakly (RFC 9110, 13.1.2)."""
    known = [one.strip() for header in headers for one in header.split(",")]
    return "*" in known or etag in [one.removeprefix("W/") for one in known]
