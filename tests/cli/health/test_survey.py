"""What `status`, `doctor` and `verify` say of views that are behind or left out, and what a survey costs."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from leftfold import QueryView, ViewNotBuilt
from leftfold.client import Views
from leftfold.memory import MemoryViewStore
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.components import why_late
from leftfold.runtime.operations.survey import Survey
from leftfold.version import install_command
from tests.cli.health.survey_calls import surveyed, write_records
from tests.cli.shell import Typing
from tests.domains.ledger import Moved, Summary, by_owner
from tests.servers import Addresses, emptied

computed = QueryView("computed", events=Moved, row=Summary, key=lambda r: r.owner, query="SELECT 1")


@pytest.mark.parametrize(("view", "behind"), [(by_owner, 0.0), (by_owner, 4.9), (computed, 61.0)])
def test_a_view_with_work_under_way_is_not_late(view: object, behind: float) -> None:
    assert not why_late(view, behind=behind, lag=9, projectors=0)  # type: ignore[arg-type]  # it is a view


@pytest.mark.parametrize(
    ("view", "projectors", "words"),
    [
        (by_owner, 0, ("130 s behind, lag 1,234", "no projector is at work", "leftfold run by_owner")),
        (by_owner, 1, ("although 1 projector is at work", "hangs", "leftfold run by_owner")),
        (by_owner, 2, ("although 2 projectors are at work",)),
        (computed, 0, ("130 s behind", "leftfold run computed")),
    ],
)
def test_a_view_that_is_late_is_named_with_what_to_type(view: object, projectors: int, words: tuple[str, ...]) -> None:
    result = why_late(view, behind=130.0, lag=1234, projectors=projectors)  # type: ignore[arg-type]  # it is a view
    assert all(word in result for word in words), result


@pytest.mark.parametrize(
    ("view", "start"),
    [(by_owner, "start a projector: leftfold run by_owner"), (computed, "let Spark keep it: leftfold run computed")],
)
def test_a_view_that_was_never_built_says_what_keeps_it(view: Any, start: str) -> None:
    survey, store = Survey(None, None), MemoryViewStore()
    assert list(survey._view(view, store, ClusterState("", ""))) == []
    (problem,) = survey.problems
    assert problem.endswith(f"for this code; {start}, or build it: leftfold rebuild {view.name}")
    with pytest.raises(ViewNotBuilt, match=f"; {start}, or build it"):
        Views(store)[view].get("x")


def test_verify_names_the_views_that_it_leaves_out(typed: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")
    result = typed("verify", "--app", "services.reports.app:app", "--redis", "redis://127.0.0.1:1/0").err
    assert "left out, since their rows are not folded event by event: store_daily, department_sales; " in result
    assert "compute them again: leftfold rebuild store_daily department_sales" in result


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("confluent_kafka", "hiredis"), f"not installed: kafka,redis; install it: {install_command('kafka,redis')}"),
        (("pyspark",), "without spark (rebuilds run in one process, query views cannot be computed)"),
    ],
    ids=["needed", "useful"],
)
def test_doctor_names_all_that_is_not_installed_at_once(
    typed: Typing, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], said: str
) -> None:
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    result = typed("doctor")
    assert said in result.out + result.err


@pytest.mark.servers
def test_a_survey_makes_as_many_calls_for_many_partitions_as_for_one(servers: Addresses) -> None:
    found: dict[int, Counter[str]] = {}
    for partitions in (1, 12):
        write_records(emptied(servers), partitions)
        calls, rows = surveyed(servers, partitions)
        found[partitions] = calls
        (orders,) = [row for row in rows if (row["kind"], row["name"]) == ("decider", "orders")]
        (view,) = [row for row in rows if row["kind"] == "view"]
        assert orders["lag"] == view["lag"] == partitions
        assert min(orders["behind"], view["behind"]) > 0
    assert found[12] == found[1]
    assert found[1]["redis"] > 0
    assert found[1]["Consumer.__init__"] > 0
    assert not found[12]["Consumer.get_watermark_offsets"]
