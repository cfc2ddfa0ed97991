"""Which queries a stream may keep."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from leftfold.spark.sql.incremental import Refreshed, classify
from leftfold.spark.sql.parser import parse
from leftfold.spark.sql.rules import check

EVENTS, FILES = ["Moved", "Opened"], ["owners"]
COLUMNS = ["owner", "ledger", "amount", "tags", "region", "_time", "_key"]


def kept(spark: SparkSession, query: str) -> Refreshed:
    return classify(check(parse(spark, query, "v"), [*EVENTS, *FILES], "v"), EVENTS, COLUMNS)


@pytest.mark.parametrize(
    ("query", "groups"),
    [
        ("SELECT owner, sum(amount) AS t FROM Moved GROUP BY owner", ("owner",)),
        ("SELECT owner AS who, count(*) AS n FROM Moved GROUP BY 1", ("who",)),
        ("SELECT owner AS who, count(*) AS n FROM Moved GROUP BY owner", ("who",)),
        ("SELECT date(_time) AS day, owner, min(amount) AS l FROM Moved GROUP BY date(_time), owner", ("day", "owner")),
        ("SELECT date(_time) AS day, count(*) AS n FROM Moved GROUP BY day", ("day",)),
        ("SELECT m.owner, avg(amount) AS a FROM Moved m WHERE amount > 0 GROUP BY m.owner", ("owner",)),
        ("SELECT tag, count(*) AS n FROM (SELECT explode(tags) AS tag FROM Moved) GROUP BY tag", ("tag",)),
        ("SELECT t.tag, count(*) AS n FROM Moved LATERAL VIEW explode(tags) t AS tag GROUP BY t.tag", ("tag",)),
        ("SELECT region, sum(amount) AS t FROM Moved JOIN owners USING (owner) GROUP BY region", ("region",)),
        ("SELECT region, sum(amount) AS t FROM Moved m LEFT JOIN owners USING (owner) GROUP BY 1", ("region",)),
        ("SELECT region, sum(amount) AS t FROM owners o RIGHT JOIN Moved m USING (owner) GROUP BY 1", ("region",)),
        ("SELECT window(_time, '1 day').start AS s, count(*) AS n FROM Moved GROUP BY window(_time, '1 day')", ("s",)),
        ("SELECT window.start AS s, count(*) AS n FROM Moved GROUP BY window(_time, '1 day')", ("s",)),
        ("SELECT owner, WINDOW.end AS e, count(*) AS n FROM Moved GROUP BY owner, window(_time, '1 h')",
         ("owner", "e")),
        ("SELECT owner, sum(amount) FILTER (WHERE amount > 0) AS g FROM Moved GROUP BY owner", ("owner",)),
    ],
)  # fmt: skip
def test_one_group_by_over_one_table_of_events_is_incremental(
    spark: SparkSession, query: str, groups: tuple[str, ...]
) -> None:
    found = kept(spark, query)
    assert (found.incremental, found.groups) == (True, groups), found.why


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT owner, amount FROM Moved", "it has no GROUP BY"),
        ("SELECT sum(amount) AS t FROM Moved", "it has no GROUP BY"),
        ("SELECT owner, sum(amount) AS t FROM Moved GROUP BY owner HAVING sum(amount) > 0", "it has HAVING"),
        ("SELECT owner, count(*) AS n FROM Moved GROUP BY owner ORDER BY n", "it has ORDER BY"),
        ("SELECT owner, count(*) AS n FROM Moved GROUP BY owner ORDER BY n LIMIT 3", "it has LIMIT"),
        ("SELECT DISTINCT owner FROM Moved", "it has DISTINCT"),
        ("SELECT owner, count(DISTINCT ledger) AS n FROM Moved GROUP BY owner", r"it has count\(DISTINCT"),
        ("SELECT owner, median(amount) AS m FROM Moved GROUP BY owner", "median is not the same"),
        ("SELECT n, count(*) AS o FROM (SELECT owner, count(*) AS n FROM Moved GROUP BY owner) GROUP BY n",
         "it has a second GROUP BY"),
        ("SELECT n, count(*) AS o FROM (SELECT count(*) AS n FROM Moved) GROUP BY n", "count below its GROUP BY"),
        ("WITH m AS (SELECT * FROM Moved) SELECT owner, count(*) AS n FROM m GROUP BY owner", "it has WITH"),
        ("SELECT owner, count(*) AS n FROM Moved WHERE owner IN (SELECT owner FROM owners) GROUP BY owner",
         "it has a subquery"),
        ("SELECT owner, count(*) AS n FROM (SELECT owner FROM Moved UNION ALL SELECT owner FROM Opened) GROUP BY owner",
         "it has UNION"),
        ("SELECT owner, count(*) AS n FROM Moved JOIN Opened USING (owner) GROUP BY owner", "reads 2 tables of events"),
        ("SELECT owner, count(*) AS n FROM owners GROUP BY owner", "reads 0 tables of events"),
        ("SELECT region, count(*) AS n FROM owners o LEFT JOIN Moved m ON o.owner = m.owner GROUP BY 1",
         "LeftOuter join, whose rows can go again"),
        ("SELECT region, count(*) AS n FROM owners o FULL JOIN Moved m ON o.owner = m.owner GROUP BY 1",
         "FullOuter join"),
        ("SELECT m.owner, count(*) AS n FROM Moved m LEFT ANTI JOIN owners o ON o.owner = m.owner GROUP BY 1",
         "LeftAnti join"),
        ("SELECT owner, sum(count(*)) OVER (ORDER BY owner) AS n FROM Moved GROUP BY owner", "it has OVER"),
        ("SELECT window(_time, '1 day').start AS s, count(*) AS n FROM Moved GROUP BY window(_time, '1 hour')",
         "its rows do not show window"),
        ("SELECT count(*) AS n FROM Moved GROUP BY owner", "its rows do not show owner"),
        ("SELECT upper(owner) AS owner, count(*) AS n FROM Moved GROUP BY owner", "its rows do not show owner"),
    ],
)  # fmt: skip
def test_anything_else_is_computed_again(spark: SparkSession, query: str, why: str) -> None:
    found = kept(spark, query)
    assert not found.incremental
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(str(found))
