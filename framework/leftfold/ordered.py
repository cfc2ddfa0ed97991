"""Text whose byte order is the order of the values: what index entries are made of."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from leftfold.errors import ContractError

__all__ = ["ordered"]

_BIAS = 500_000
_NINES = str.maketrans("0123456789", "9876543210")


def ordered(value: Any) -> str:
    """The value as sortable text; None sorts first.

    Raises:
        ContractError: the value's type has no order here.
    """
    match value:
        case None:
            return "-"
        case bool():
            return "=1" if value else "=0"
        case Enum():
            return ordered(value.value)
        case int():
            return ordered(Decimal(value))
        case Decimal() if value.is_finite() and abs(value.adjusted()) < _BIAS:
            return "=" + _number(value)
        case datetime():
            return "=" + value.astimezone(UTC).isoformat(timespec="microseconds")
        case date():
            return "=" + value.isoformat()
        case str():
            return "=" + value
        case UUID():
            return "=" + str(value)
    raise ContractError(f"{value!r} cannot be indexed; index str, numbers, times, bool, Enum or UUID fields")


def _number(value: Decimal) -> str:
    """Sign, biased exponent and digits; negative numbers have both complemented."""
    if not value:
        return "1"
    sign, digits, _ = value.as_tuple()
    exponent = f"{value.adjusted() + _BIAS:06d}"
    mantissa = "".join(map(str, digits)).rstrip("0")
    return f"2{exponent}{mantissa}" if not sign else "0" + (exponent + mantissa).translate(_NINES) + "~"
