"""Records of bulk reads as the folds see them."""

from __future__ import annotations

from typing import Any

from leftfold.ports.bulk import OffsetRange, raw_all


class Foreign:
    """A record as confluent-kafka gives it; the name of a header may not be UTF-8."""

    def __init__(self, offset: int, *, is_good: bool = False) -> None:
        self._offset, self._is_good = offset, is_good

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> Any:
        if not self._is_good:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return [("ce_id", b"1")]

    def timestamp(self) -> tuple[int, int]:
        return 1, 5


def test_a_header_whose_name_cannot_be_read_costs_its_record_the_headers_and_no_other() -> None:
    """As projectors read it, so that a rebuild parks what they park."""
    records: Any = [Foreign(0, is_good=True), Foreign(1), Foreign(2, is_good=True)]
    found = raw_all(OffsetRange("t", 0, 0, 3), records)
    assert [(record.offset, len(record.headers)) for record in found] == [(0, 1), (1, 0), (2, 1)]
