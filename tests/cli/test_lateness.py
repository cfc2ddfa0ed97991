"""What `status` says of views that are behind, and of whom it says nothing."""

from __future__ import annotations

import pytest

from leftfold import QueryView
from leftfold.cli.lateness import why_late
from tests.ledger import Moved, Summary, by_owner

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
