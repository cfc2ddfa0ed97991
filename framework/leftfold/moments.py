"""Times in records: whatever was written there, reading them never fails."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["moment_at", "moment_in"]

_LATEST = 253_402_300_799_000
"""The last second of the year 9999 in ms: a record may claim any time, and datetime ends there."""


def moment_in(text: bytes) -> datetime | None:
    """The time that a header holds, in UTC; None when it is none, or has no time zone."""
    try:
        time = datetime.fromisoformat(text.decode())
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def moment_at(milliseconds: int) -> datetime:
    """The time so long after the beginning of 1970; of what is too early or too late for a datetime, the nearest."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LATEST) / 1000, UTC)
