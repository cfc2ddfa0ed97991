from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold.model.keys import murmur2, partition_of

# From Kafka's own UtilsTest.testMurmur2 (org.apache.kafka.common.utils), as signed 32-bit numbers.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("data", VECTORS)
def test_murmur2_gives_what_the_java_client_gives(data: bytes) -> None:
    assert murmur2(data) == VECTORS[data] & 0x7FFFFFFF


@given(st.binary(max_size=100), st.integers(1, 4096))
def test_a_key_has_one_partition_within_the_count(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_keys_spread_over_the_partitions() -> None:
    found = [partition_of(b"basket-%d" % n, 12) for n in range(12_000)]
    assert all(800 < found.count(partition) < 1200 for partition in range(12))
