"""An address at which no broker is: what is wrong with it is said at once, each mistake in its own words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leftfold.errors import InfrastructureError
from leftfold.kafka.errors import Unreachable
from leftfold.kafka.reachability import check_reachable, unreachable_reason
from leftfold.kafka.settings import KafkaSettings
from tests.free_ports import free_port


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """Another server: says the same to whatever comes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def settings(address: str, **others: str) -> KafkaSettings:
    return KafkaSettings.model_validate({"bootstrap_servers": address, "request_timeout": 0.2, **others})


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", r"nothing listens at 127\.0\.0\.1:1, connection refused; is the address right"),
        ("no-such-host.invalid:9092", "there is no host 'no-such-host.invalid'"),
        ("[::1]:1,127.0.0.1:1", r"; nothing listens at 127\.0\.0\.1:1,"),
    ],
)
def test_each_unreachable_address_has_its_own_reason(address: str, why: str) -> None:
    with pytest.raises(Unreachable, match=why) as caught:
        check_reachable(settings(address))
    assert isinstance(caught.value, InfrastructureError)
    assert str(caught.value).startswith(f"no broker at {address}: ")
    assert "leftfold up" not in str(caught.value)


def test_an_address_without_a_port_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leftfold.kafka.reachability._PORT", free_port())
    with pytest.raises(Unreachable, match=r"nothing listens at 127\.0\.0\.1:\d+ \(no port is given\), connection"):
        check_reachable(settings("127.0.0.1"))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x32", b""])
def test_another_protocol_is_named(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leftfold.kafka.reachability._SECONDS", 60.0)
    with server(answer) as address:
        with pytest.raises(Unreachable, match=r"does not answer as Kafka does \(another server's port, or one for TLS"):
            check_reachable(settings(address))
        with pytest.raises(Unreachable, match="speaks no TLS, which security_protocol=SSL wants"):
            check_reachable(settings(address, security_protocol="SSL"))


def test_a_server_that_says_nothing_may_be_a_broker_under_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        check_reachable(settings(address))
        assert "takes connections but does not answer as Kafka does" in unreachable_reason(settings(address), 0.1)


def test_one_address_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_reachable(settings(f"127.0.0.1:1,127.0.0.1:{listener.getsockname()[1]}"))


@pytest.mark.servers
def test_a_broker_is_found(kafka: KafkaSettings) -> None:
    check_reachable(kafka)
    assert unreachable_reason(kafka, 240.0) == ""
