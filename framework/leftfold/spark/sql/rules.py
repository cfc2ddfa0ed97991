"""Checks SQL statements against the rules of views and of ad-hoc queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from leftfold.errors import ConfigurationError
from leftfold.spark.sql.allowed import (
    ASKED_FUNCTIONS,
    ASKED_KINDS,
    ASKED_TABLES,
    BARE_WORDS,
    CLOCKS,
    FUNCTIONS,
    GENERATORS,
    KINDS,
    PlanNode,
)

__all__ = ["QUESTION", "VIEW", "CheckedQuery", "Rules", "check"]

_SHOWN = 80


@dataclass(frozen=True)
class Rules:
    """What a statement may contain; anything that a later Spark adds is not allowed.

    Args:
        what: named in refusals. kinds: operators and expressions, by the names of Spark's classes. functions: by
            name. series: functions that may stand in the place of a table. steady: whether it must give the same rows
            each time, read a table of the log, and make few rows from what it reads.
    """

    what: str
    kinds: Collection[str]
    functions: Collection[str]
    series: Collection[str]
    steady: bool


VIEW = Rules("a query view", KINDS, FUNCTIONS, frozenset(), steady=True)
QUESTION = Rules("a question", ASKED_KINDS, ASKED_FUNCTIONS, ASKED_TABLES, steady=False)


@dataclass(frozen=True)
class CheckedQuery:
    """A statement that may run.

    Args:
        plan: the parsed statement. tables: those of the log that it reads. columns: every name in it that may be a
            column, in lower case; None = all columns (`*`).
    """

    plan: PlanNode
    tables: tuple[str, ...]
    columns: frozenset[str] | None


def check(plan: PlanNode, tables: Collection[str], where: str, rules: Rules = VIEW) -> CheckedQuery:
    """The statement, if everything in it is allowed.

    Args:
        tables: the names of the existing tables. where: named in errors.

    Raises:
        ConfigurationError: something is not allowed; the message names the word.
    """
    nodes = list(plan.walk())
    for node in nodes:
        if node.judged:
            if node.kind not in rules.kinds:
                raise _refused(where, node, f"{_named(node.kind)} is not allowed here")
            for checks in (_NAMED, _STEADY) if rules.steady else (_NAMED,):
                if node.kind in checks:
                    checks[node.kind](node, where, rules)
    known = {name.lower(): name for name in tables}
    ours = {name for node in nodes if node.kind == "UnresolvedWith" for name in _with_names(node)}
    read = _tables(nodes, known, ours, where)
    if rules.steady and not read:
        raise ConfigurationError(f"{where}: the query reads no table of its events; it has {', '.join(tables)}")
    return CheckedQuery(plan, read, _columns(nodes))


def _tables(nodes: list[PlanNode], known: Mapping[str, str], ours: Collection[str], where: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node in nodes:
        if node.kind != "UnresolvedRelation":
            continue
        names = node.words
        name = names[0].lower() if len(names) == 1 else ""
        if name in known:
            found[known[name]] = None
        elif name not in ours:
            raise _refused(where, node, f"there is no table {'.'.join(names)}; it has {', '.join(known.values())}")
    return tuple(found)


def _with_names(node: PlanNode) -> list[str]:
    ctes = node.parts[1]
    found = [cte.parts[0] for cte in ctes if isinstance(cte, PlanNode)] if isinstance(ctes, tuple) else []
    return [name.lower() for name in found if isinstance(name, str)]


def _columns(nodes: list[PlanNode]) -> frozenset[str] | None:
    if any(node.kind == "UnresolvedStar" for node in nodes):
        return None
    if any(_kind_of(node.parts[2]) in ("UsingJoin", "NaturalJoin") for node in nodes if node.kind == "Join"):
        return None
    return frozenset(word.lower() for node in nodes if node.kind == "UnresolvedAttribute" for word in node.words)


def _refused(where: str, node: PlanNode, why: str) -> ConfigurationError:
    text = " ".join(node.text.split())
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return ConfigurationError(f"{where}: {why}: {shown}" if shown else f"{where}: {why}")


def _named(kind: str) -> str:
    return kind.removeprefix("Unresolved").removesuffix("Command").removesuffix("Statement") or kind


def _function(node: PlanNode, where: str, rules: Rules) -> None:
    name = ".".join(node.words)
    if name.lower() not in rules.functions:
        raise _refused(where, node, f"the function {name} is not allowed in {rules.what}")


def _series(node: PlanNode, where: str, rules: Rules) -> None:
    name = ".".join(node.words)
    if name.lower() not in rules.series:
        raise _refused(where, node, f"the function {name} is no table of {rules.what}")


def _generator(node: PlanNode, where: str, rules: Rules) -> None:
    identifier = node.parts[0]
    name = str(identifier.parts[0]) if isinstance(identifier, PlanNode) else str(identifier)
    if name.lower() not in GENERATORS:
        raise _refused(where, node, f"the function {name} is not allowed in LATERAL VIEW")


def _attribute(node: PlanNode, where: str, rules: Rules) -> None:
    words = node.words
    if len(words) == 1 and words[0].lower() in BARE_WORDS:
        raise _refused(
            where, node, f"{words[0]} is a function in SQL; a column of that name is written table.{words[0]}"
        )


def _literal(node: PlanNode, where: str, rules: Rules) -> None:
    typed = node.text.partition("'")[2].rpartition("'")[0]
    for text in (node.parts[0], typed):
        if isinstance(text, str) and CLOCKS.fullmatch(text):
            raise _refused(where, node, f"{text!r} may mean the present time, and that differs each time")


def _with(node: PlanNode, where: str, rules: Rules) -> None:
    if node.parts[2] is True:
        raise _refused(where, node, "WITH RECURSIVE is not allowed here")


def _limit(node: PlanNode, where: str, rules: Rules) -> None:
    local = node.parts[1]
    below = local.parts[1] if isinstance(local, PlanNode) and local.kind == "LocalLimit" else None
    if _kind_of(below) != "Sort":
        raise _refused(where, node, "LIMIT (or TABLESAMPLE) without ORDER BY gives other rows each time")


def _join(node: PlanNode, where: str, rules: Rules) -> None:
    kind, condition = _kind_of(node.parts[2]), _kind_of(node.parts[3])
    if condition == "None" and kind not in ("UsingJoin", "NaturalJoin"):
        raise _refused(where, node, "a join without ON pairs every row with every other; write JOIN ... ON ...")


def _kind_of(part: object) -> str:
    return part.kind if isinstance(part, PlanNode) else ""


_Rule = Callable[[PlanNode, str, Rules], None]
_NAMED: Mapping[str, _Rule] = {
    "UnresolvedFunction": _function,
    "UnresolvedGenerator": _generator,
    "UnresolvedTableValuedFunction": _series,
}
"""Checks of names, for every statement."""
_STEADY: Mapping[str, _Rule] = {
    "UnresolvedAttribute": _attribute,
    "Literal": _literal,
    "UnresolvedWith": _with,
    "GlobalLimit": _limit,
    "Join": _join,
}
"""Checks for views: what would give other rows each time, or too many."""
