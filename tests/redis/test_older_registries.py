"""What an older version wrote into a registry is read as before."""

from __future__ import annotations

import json
from typing import Any

from leftfold.redis.stored_values import decoded

OLD: dict[str, Any] = {
    "hash": "0123", "stream_keyed": False, "buckets": 16, "topics": {"shop.events": 4}, "phase": "kept",
    "created": "2026-01-01T00:00:00Z", "since": "2026-01-01T00:00:00Z", "name": "", "fold": "cafe", "ends": {},
}  # fmt: skip


def test_an_older_generation_was_folded_by_the_one_code_that_it_names_and_has_no_end() -> None:
    found = decoded("spend", {b"g:1-ab": json.dumps(OLD).encode()}).generations["1-ab"]
    assert (found.fold, found.folds, found.superseded, found.until) == ("cafe", ("cafe",), (), "")


def test_of_a_generation_without_a_code_none_is_known() -> None:
    found = decoded("spend", {b"g:1-ab": json.dumps(OLD | {"fold": ""}).encode()}).generations["1-ab"]
    assert (found.fold, found.folds) == ("", ())
