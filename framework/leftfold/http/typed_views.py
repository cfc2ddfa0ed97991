"""Views with the types of their keys, indexes and rows, as requests write and answers show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic_core import from_json

from leftfold.client.results import Entry
from leftfold.errors import ContractError
from leftfold.http.problems import refusal
from leftfold.http.routes import POSITION_HEADER, position_in, schema_name, token_of
from leftfold.model.rows import ordered
from leftfold.model.view import View

__all__ = ["TypedView"]

_OWN = frozenset({"between", "at_least", "above", "at_most", "below", "top", "order", "cursor", "limit", "after",
                  "timeout", "fields", "as_of"})  # fmt: skip
"""Query parameters that are no indexed fields."""


class TypedView:
    """A view with the types of its keys, indexes and rows, as requests write and answers show them."""

    def __init__(self, view: View[Any, Any]) -> None:
        self.view, self._row = view, TypeAdapter[Any](view.rows.row)
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
            {"in": "query", "name": name, "required": False, "schema": _schema(type_),
             "description": f"Only rows with this {name}" + ("; null = none." if NoneType in get_args(type_) else ".")}
            for name, type_ in self.view.rows.index_types.items()
            if name not in _OWN
        ]  # fmt: skip
        return {"parameters": found} if found else {}

    def key_in(self, request: Request, text: str) -> Any:
        """The key in a path: parts have / between them, and one within a part is %2F.

        A client that quotes the whole key, as generated ones do, is understood, too.
        """
        keys, name = self.view.keys, self.view.name
        try:
            key = keys.read(self._parts_in(request, text) if keys.composite else text)
            keys.encode(key)
        except (ValueError, ContractError) as error:
            raise refusal(400, f"{text[:80]!r} is no key of view {name}: {str(error)[:200]}") from error
        return key

    def _parts_in(self, request: Request, text: str) -> str | Sequence[str]:
        path: str = request.scope["path"]
        raw = request.scope.get("raw_path", quote(path).encode()).decode("ascii")
        for _ in range(path.removesuffix(text).count("/")):
            raw = raw.partition("/")[2]
        # With a %2F in front of the key, this is another end of the path, and so another key than rules are asked for.
        for form in (raw, text) if unquote(raw) == text else (text,):
            if len(parts := form.split("/")) == len(self.view.keys.parts):
                return [unquote(part) for part in parts]
        return text

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
            value = TypeAdapter(type_).validate_strings(text)
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
        return Response(self._row.dump_json(entry.row), headers=self.headers_of(entry), media_type="application/json")

    def shown(self, row: Any, fields: str | None) -> dict[str, Any]:
        """A row as JSON, with all fields or some."""
        found: dict[str, Any] = from_json(self._row.dump_json(row))
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


def _schema(type_: Any) -> dict[str, Any]:
    """The schema of an indexed field as text of a query parameter, whole and without null."""
    schema = TypeAdapter(type_).json_schema(mode="serialization")
    named = schema.pop("$defs", {})
    kinds = [named[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in schema.get("anyOf", [schema])]
    kinds = [one for one in kinds if one.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
