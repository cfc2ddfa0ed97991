"""Finds the queries that a stream can keep up to date: those whose groups only ever take in more events."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from leftfold.spark.sql.allowed import AGGREGATES, Part, PlanNode
from leftfold.spark.sql.rules import CheckedQuery

__all__ = ["Refreshed", "classify"]

_ADDS = AGGREGATES - {"approx_count_distinct", "median", "percentile", "percentile_cont", "percentile_disc"}
_CLAUSES = {
    "Aggregate": "a second GROUP BY", "Distinct": "DISTINCT", "Except": "EXCEPT", "GlobalLimit": "LIMIT",
    "Intersect": "INTERSECT", "LocalLimit": "LIMIT", "Sort": "ORDER BY", "Union": "UNION", "UnresolvedHaving": "HAVING",
    "UnresolvedWith": "WITH", "WithWindowDefinition": "WINDOW", "Exists": "a subquery", "ListQuery": "a subquery",
    "ScalarSubquery": "a subquery", "WindowExpression": "OVER", "UnresolvedWindowExpression": "OVER",
}  # fmt: skip


@dataclass(frozen=True)
class Refreshed:
    """How a view is kept up to date.

    Args:
        incremental: by a stream; otherwise all of it is computed again at intervals and swapped.
        why: the reason, for people. groups: the result columns that hold a group's key, when incremental.
    """

    incremental: bool
    why: str
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{'incremental' if self.incremental else 'batch and swap'}: {self.why}"


class _Batch(Exception):
    """The query is not incremental; the text says why."""


def classify(query: CheckedQuery, events: Collection[str], columns: Collection[str]) -> Refreshed:
    """How a checked query can be kept up to date.

    Args:
        events: the names of the tables of events; the others are reference files. columns: of all its tables.
    """
    try:
        groups = _groups(query.plan, {name.lower() for name in events}, {name.lower() for name in columns})
    except _Batch as batch:
        return Refreshed(incremental=False, why=str(batch))
    return Refreshed(incremental=True, why="one GROUP BY over one table of events", groups=groups)


def _groups(plan: PlanNode, events: Collection[str], columns: Collection[str]) -> tuple[str, ...]:
    if plan.kind != "Aggregate":
        clause = _CLAUSES.get(plan.kind)
        raise _Batch(f"it has {clause}" if clause else "it has no GROUP BY")
    grouping, results, below, *_ = plan.parts
    for node in plan.walk():
        if node is not plan and node.kind in _CLAUSES:
            raise _Batch(f"it has {_CLAUSES[node.kind]}")
    for name, distinct in _functions(results):
        if name in AGGREGATES and name not in _ADDS:
            raise _Batch(f"{name} is not the same when it is computed piece by piece")
        if distinct:
            raise _Batch(f"it has {name}(DISTINCT ...)")
    if not isinstance(below, PlanNode):
        raise _Batch("it reads nothing")
    _check_below(below, events)
    return tuple(_shown(group, _many(results), columns) for group in _many(grouping))


def _check_below(below: PlanNode, events: Collection[str]) -> None:
    read = [node.words[0].lower() for node in below.walk() if node.kind == "UnresolvedRelation"]
    streams = [name for name in read if name in events]
    if len(streams) != 1:
        raise _Batch(f"it reads {len(streams)} tables of events, and a stream follows one")
    for name, _ in _functions((below,)):
        if name in AGGREGATES:
            raise _Batch(f"it has {name} below its GROUP BY")
    for node in below.walk():
        if node.kind == "Join":
            _check_join(node, events)


def _check_join(join: PlanNode, events: Collection[str]) -> None:
    left, right, kind, *_ = join.parts
    how = kind.parts[0] if isinstance(kind, PlanNode) and kind.kind == "UsingJoin" else kind
    name = how.kind if isinstance(how, PlanNode) else ""
    streamed = {"LeftOuter": left, "RightOuter": right}
    if name == "Inner" or (name in streamed and _reads(streamed[name], events)):
        return
    raise _Batch(f"it has a {name} join, whose rows can go again when an event comes")


def _reads(part: Part, events: Collection[str]) -> bool:
    nodes = part.walk() if isinstance(part, PlanNode) else ()
    return any(node.kind == "UnresolvedRelation" and node.words[0].lower() in events for node in nodes)


def _functions(part: Part) -> Iterator[tuple[str, bool]]:
    for one in _many(part):
        for node in one.walk():
            if node.kind == "UnresolvedFunction":
                yield node.words[-1].lower(), node.parts[2] is True


def _shown(group: PlanNode, results: list[PlanNode], columns: Collection[str]) -> str:
    """The result column that shows a grouping expression; a name refers to a column before an alias."""
    if group.kind == "UnresolvedOrdinal" and isinstance(group.parts[0], int):
        return _name(results[group.parts[0] - 1]) if 0 < group.parts[0] <= len(results) else ""
    word = group.words[-1].lower() if group.kind == "UnresolvedAttribute" else ""
    for result in results:
        named = _name(result)
        alias = result.kind == "Alias" and word in columns
        bare = _bare(result)
        if named and (
            bare == group or _is_edge(bare, group, columns) or (word and named.lower() == word and not alias)
        ):
            return named
    raise _Batch(f"its rows do not show {group.text or group.kind}, by which it groups")


def _is_edge(result: PlanNode, group: PlanNode, columns: Collection[str]) -> bool:
    """Whether a result column is the start or end of the window that is grouped by, which identifies the window.

    The query may repeat that window expression, or name it `window` as Spark does, unless a column has that name.
    """
    if group.kind != "UnresolvedFunction" or group.words != ("window",):
        return False
    if result.kind == "UnresolvedExtractValue":
        return result.parts[0] == group
    words = tuple(word.lower() for word in result.words) if result.kind == "UnresolvedAttribute" else ()
    return words in (("window", "start"), ("window", "end")) and "window" not in columns


def _name(result: PlanNode) -> str:
    if result.kind == "Alias":
        return str(result.parts[1])
    return result.words[-1] if result.kind == "UnresolvedAttribute" else ""


def _bare(result: PlanNode) -> PlanNode:
    inner = result.parts[0] if result.kind in ("Alias", "UnresolvedAlias") else result
    return inner if isinstance(inner, PlanNode) else result


def _many(part: Part) -> list[PlanNode]:
    return [one for one in (part if isinstance(part, tuple) else (part,)) if isinstance(one, PlanNode)]
