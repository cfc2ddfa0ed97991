"""Writes a record whose header has any bytes as its name, which confluent-kafka refuses to write."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

__all__ = ["produce_with_header"]

# rd_kafka_vtype_t in rdkafka.h.
_END, _TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS = 0, 1, 3, 4, 5, 7, 10
_COPY = 2
_PRODUCER = 0


def produce_with_header(address: str, topic: str, partition: int, key: bytes, value: bytes, name: bytes) -> None:
    """Writes one record and waits until the broker has it."""
    library = _library()
    reason = ctypes.create_string_buffer(512)
    config = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(config, b"bootstrap.servers", address.encode(), reason, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, config, reason, 512))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
    library.rd_kafka_header_add(headers, name, len(name), b"x", 1)
    tags = [_TOPIC, topic.encode(), _PARTITION, ctypes.c_int32(partition), _FLAGS, _COPY, _HEADERS, headers]
    content = [_VALUE, value, ctypes.c_size_t(len(value)), _KEY, key, ctypes.c_size_t(len(key))]
    assert library.rd_kafka_producev(producer, *tags, *content, _END) == 0
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)


def _library() -> ctypes.CDLL:
    """The librdkafka inside the wheel."""
    package = Path(confluent_kafka.__file__).parent
    (found,) = (package.parent / "confluent_kafka.libs").glob("librdkafka-*")
    library = ctypes.CDLL(str(found))
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = ctypes.c_void_p
    return library
