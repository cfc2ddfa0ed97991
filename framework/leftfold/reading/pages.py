"""Reading all of a view, page by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from typing_extensions import TypeVar

from leftfold.digits import number_in
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.flush import Generation
from leftfold.questions import Listed, Registered, Rows
from leftfold.reading.arguments import check_number
from leftfold.reading.live import Live
from leftfold.reading.steps import Steps, ask

__all__ = ["Page", "Pages"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


@dataclass(frozen=True)
class Page(Generic[Row, K]):
    """Some rows of a scan in bucket and key order; `cursor` continues it, None at the end."""

    rows: tuple[tuple[K, Row], ...]
    cursor: str | None


class Pages(Generic[Row, K]):
    """Scans the live generation; a cursor carries the generation it began in."""

    def __init__(self, live: Live[Row, K]) -> None:
        self._live, self._view = live, live.view

    def page(self, cursor: str, limit: int) -> Steps[Page[Row, K]]:
        """Up to `limit` rows from a cursor on."""
        check_number(limit, "limit")
        generation, bucket, last = yield from self._at(cursor)
        rows: list[tuple[K, Row]] = []
        while bucket < generation.buckets and len(rows) < limit:
            keys = yield from ask(Listed(generation, bucket, last, limit - len(rows)))
            snapshot = yield from ask(Rows(generation, tuple([(bucket, key) for key in keys]), (bucket,)))
            if bucket not in snapshot.marks:
                raise self._gone(generation.id)
            for key, fields in zip(keys, snapshot.rows, strict=True):
                if fields is not None:
                    rows.append((self._view.keys.decode(key), self._view.rows.decode(fields)))
            bucket, last = (bucket, keys[-1]) if keys else (bucket + 1, "")
        ended = bucket >= generation.buckets
        return Page(tuple(rows), None if ended else f"{generation.id}:{bucket}:{last}")

    def _at(self, cursor: str) -> Steps[tuple[Generation, int, str]]:
        if not cursor:
            return (yield from self._live.generation(fresh=True)), 0, ""
        id_, _, place = cursor.partition(":")
        bucket, _, last = place.partition(":")
        if (number := number_in(bucket)) is None:
            raise ContractError(f"{cursor!r} is no cursor; take it from the page before")
        registry = yield from ask(Registered(self._view.name))
        generation = registry.generations.get(id_)
        if generation is None or generation.hash != self._view.hash:
            raise self._gone(id_)
        return generation, number, last

    def _gone(self, id_: str) -> ViewNotBuilt:
        return ViewNotBuilt(f"generation {id_} of view {self._view.name} is gone; start the scan over")
