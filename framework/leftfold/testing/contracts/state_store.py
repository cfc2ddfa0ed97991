"""The contract tests for every StateStore; needs pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.ports.protocols import StateStore

__all__ = ["StateStoreContract"]


class StateStoreContract:
    """Contract tests for a StateStore: subclass as `Test…`, with a fixture `store` that gives an empty one."""

    @pytest.fixture
    def store(self) -> Iterator[StateStore]:
        """The adapter under test."""
        raise NotImplementedError("override the fixture `store`")

    def test_an_empty_store_has_no_stream(self, store: StateStore) -> None:
        assert (store.get("a"), len(store), list(store.items())) == (None, 0, [])

    def test_a_record_comes_back_as_it_was(self, store: StateStore) -> None:
        store.put([("a", b"\x00\xff{}"), ("b", b"")])
        assert (store.get("a"), store.get("b"), store.get("c")) == (b"\x00\xff{}", b"", None)

    def test_the_later_record_of_a_stream_wins(self, store: StateStore) -> None:
        store.put([("a", b"1"), ("b", b"1"), ("a", b"2")])
        store.put([("b", b"2")])
        assert (store.get("a"), store.get("b"), len(store)) == (b"2", b"2", 2)

    def test_putting_nothing_changes_nothing(self, store: StateStore) -> None:
        store.put([("a", b"1")])
        store.put([])
        assert dict(store.items()) == {"a": b"1"}

    @pytest.mark.parametrize("key", ["é", " ", "a/b", "{tag}", "\x00", "a\nb", "\U0010ffff", "k" * 10_000])
    def test_any_key_is_its_own(self, store: StateStore, key: str) -> None:
        store.put([(key, b"mine"), ("other", b"1")])
        assert store.get(key) == b"mine"
        assert dict(store.items()) == {key: b"mine", "other": b"1"}

    def test_every_record_is_listed_once(self, store: StateStore) -> None:
        records = {f"stream-{number}": b"%d" % number for number in range(5000)}
        store.put(records.items())
        store.put((key, value + b"!") for key, value in records.items())
        listed = list(store.items())
        assert len(listed) == len(store) == 5000
        assert dict(listed) == {key: value + b"!" for key, value in records.items()}
