"""Tells a query from everything else that Spark SQL would do: write, set, cache, or run programs."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leftfold.errors import ContractError

__all__ = ["check_query"]

_QUERIES = frozenset(
    {
        "Aggregate", "Distinct", "Except", "Filter", "GlobalLimit", "Intersect", "Join", "LocalLimit", "LocalRelation",
        "Offset", "OneRowRelation", "Pivot", "Project", "Sort", "SubqueryAlias", "Tail", "Union", "UnresolvedHaving",
        "UnresolvedInlineTable", "UnresolvedOrderBy", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases",
        "UnresolvedTableValuedFunction", "UnresolvedWith", "Unpivot", "Window", "WithWindowDefinition",
    }
)  # fmt: skip
_PROGRAMS = re.compile(r"ScriptTransformation|\b(java_method|reflect|try_reflect)\b", re.IGNORECASE)
_PLANS = "org.apache.spark.sql.catalyst.plans.logical"


def check_query(spark: SparkSession, text: str) -> None:
    """Checks that a statement only reads, before anything of it runs.

    Raises:
        ContractError: it is no SQL, or no query, or one that calls programs.
    """
    session: Any = spark
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001  # no public parser
    except PySparkException as error:
        raise ContractError(f"that is no SQL: {_brief(error)}") from error
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public one
    others = [jvm.java.lang.Class.forName(f"{_PLANS}.{name}") for name in ("Command", "ParsedStatement")]
    if plan.nodeName() not in _QUERIES or _any(plan, others):
        raise ContractError(f"only queries are answered here, and this is {plan.nodeName()}; begin with SELECT or WITH")
    if found := _PROGRAMS.search(plan.treeString()):
        raise ContractError(f"a query may not call programs, and this one has {found[0]}")


def _any(plan: Any, kinds: list[Any]) -> bool:
    children = plan.children()
    return any(kind.isInstance(plan) for kind in kinds) or any(
        _any(children.apply(number), kinds) for number in range(children.size())
    )


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)
