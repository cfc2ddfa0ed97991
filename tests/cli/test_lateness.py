"""What `status` says of views that are behind, and of whom it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from leftfold import QueryView, ViewNotBuilt
from leftfold.cli.main import run
from leftfold.client import Views
from leftfold.memory import MemoryViewStore
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.components import why_late
from leftfold.runtime.operations.survey import Survey
from tests.domains.ledger import Moved, Summary, by_owner

computed = QueryView("computed", events=Moved, row=Summary, key=lambda r: r.owner, query="SELECT 1")


@pytest.mark.parametrize(("view", "behind"), [(by_owner, 0.0), (by_owner, 4.9), (computed, 61.0)])
def test_a_view_with_work_under_way_is_not_late(view: object, behind: float) -> None:
    assert not why_late(view, behind=behind, lag=9, tails=0)  # type: ignore[arg-type]  # it is a view


@pytest.mark.parametrize(
    ("view", "tails", "words"),
    [
        (by_owner, 0, ("130 s behind, lag 1,234", "no tail is at work", "leftfold run by_owner")),
        (by_owner, 1, ("although 1 tail is at work", "hangs", "leftfold run by_owner")),
        (by_owner, 2, ("although 2 tails are at work",)),
        (computed, 0, ("130 s behind", "leftfold run computed")),
    ],
)
def test_a_view_that_is_late_is_named_with_what_to_type(view: object, tails: int, words: tuple[str, ...]) -> None:
    told = why_late(view, behind=130.0, lag=1234, tails=tails)  # type: ignore[arg-type]  # it is a view
    assert all(word in told for word in words), told


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


def test_verify_names_the_views_that_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    run(["verify", "--app", "services.reports.app:app", "--redis", "redis://127.0.0.1:1/0"])
    told = capsys.readouterr().err
    assert "left out, since their rows are not folded event by event: store_daily, department_sales; " in told
    assert "compute them again: leftfold rebuild store_daily department_sales" in told
