"""Parses SQL with Spark's own parser into plain values, without running it."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leftfold.errors import ConfigurationError
from leftfold.spark.sql.allowed import Part, PlanNode

__all__ = ["parse"]

_MOST_PARTS = 10_000
_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"


def parse(spark: SparkSession, query: str, where: str, *, most: int = _MOST_PARTS) -> PlanNode:
    """Parses one SQL statement to a plan.

    Args:
        where: named in errors. most: how many parts it may have; each costs some ms.

    Raises:
        ConfigurationError: Spark cannot parse it, it is more than one statement, or it has too many parts.
    """
    if "${" in query:
        raise ConfigurationError(f"{where}: Spark would replace ${{...}} by a setting; write the value itself")
    internals: Any = spark
    try:
        plan = internals._jsparkSession.sessionState().sqlParser().parsePlan(query)  # noqa: SLF001  # no other way
    except PySparkException as error:
        raise ConfigurationError(f"{where}: {_message(error)}") from error
    try:
        return _PlanReader(internals._jvm, query, most).node(plan)  # noqa: SLF001  # no other way
    except _TooManyParts as error:
        raise ConfigurationError(f"{where}: the query has more than {most} parts, which are too many") from error
    except RecursionError as error:
        raise ConfigurationError(f"{where}: the query is nested too deeply") from error


def _message(error: Exception) -> str:
    """The message of a parse error, without the picture of the statement."""
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines if line.strip() and not line.startswith(("---", "^", "==")))[:400]


class _TooManyParts(Exception):
    """The statement has more parts than are read."""


class _PlanReader:
    """Copies a plan out of the JVM; its objects are tree nodes, collections, values or text."""

    def __init__(self, jvm: Any, query: str, most: int) -> None:
        load = jvm.java.lang.Class.forName
        self._tree, self._product = load(_TREE), load("scala.Product")
        self._many = load("scala.collection.Iterable")
        self._query, self._left = query, most

    def node(self, plan: Any) -> PlanNode:
        found = self._part(plan)
        if not isinstance(found, PlanNode):
            raise TypeError(f"{plan} is no plan")
        return found

    def _part(self, thing: Any) -> Part:
        if not isinstance(thing, JavaObject):
            return thing.hex() if isinstance(thing, bytes | bytearray) else thing
        self._left -= 1
        if self._left < 0:
            raise _TooManyParts
        if self._tree.isInstance(thing):
            return PlanNode(_kind(thing), self._elements(thing), text=self._text(thing))
        if self._many.isInstance(thing):
            return self._items(thing)
        if self._product.isInstance(thing):
            return PlanNode(_kind(thing), self._elements(thing), judged=False)
        return str(thing.toString())

    def _elements(self, thing: Any) -> tuple[Part, ...]:
        return tuple([self._part(thing.productElement(index)) for index in range(thing.productArity())])

    def _items(self, thing: Any) -> tuple[Part, ...]:
        items, iterator = [], thing.iterator()
        while iterator.hasNext():
            items.append(self._part(iterator.next()))
        return tuple(items)

    def _text(self, thing: Any) -> str:
        origin = thing.origin()
        start, stop = origin.startIndex(), origin.stopIndex()
        if start.isEmpty() or stop.isEmpty():
            return ""
        return self._query[int(start.get()) : int(stop.get()) + 1]


def _kind(thing: Any) -> str:
    return str(thing.getClass().getName()).rpartition(".")[2].rstrip("$")
