"""A share that is none is met with the option it was typed for."""

from __future__ import annotations

import pytest

from leftfold.cli.views.rebuild import share_of
from leftfold.runtime.project import Usage
from tests.cli.shell import Shell


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.25", 0.25), ("100%", 1.0), ("1", 1.0)])
def test_a_share_is_typed_as_a_part_or_in_percent(text: str, share: float) -> None:
    assert share_of(text, "--share", "one core") == share


@pytest.mark.parametrize("text", ["", "0", "200%", "-1%", "much", "nan", "inf"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(Usage, match=f"--share '{text}' is no share of one core"):
        share_of(text, "--share", "one core")


def test_the_message_names_the_option_that_was_typed(shop: Shell) -> None:
    told = shop("verify", "--continuous", "--share", "200%")
    assert (told.code, "--share '200%' is no share of one core" in told.err) == (2, True), told.err
    told = shop("rebuild", "cart_summary", "--engine", "local", "--sample", "lots")
    assert (told.code, "--sample 'lots' is no share of the rows" in told.err) == (2, True), told.err
