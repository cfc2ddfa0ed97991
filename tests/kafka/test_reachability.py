"""An address at which no broker is: what is wrong with it is said at once, each mistake in its own words."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import Unreachable
from leftfold.kafka.reachability import check_reachable, unreachable_reason
from leftfold.kafka.settings import KafkaSettings
from tests.free_ports import free_port


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Another server: says the same to whatever comes."""

    def answer_all(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)

    return answer_all


@contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Talks so with each client, one behind the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                talk(connection)

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


ALERT = b"\x15\x03\x03\x00\x02\x02\x32"
"""The answer of a server that speaks TLS to what is none."""


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", ALERT, b""])
def test_another_protocol_is_named(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leftfold.kafka.reachability._SECONDS", 60.0)
    with server(answering(answer)) as address:
        with pytest.raises(Unreachable, match=r"does not answer as Kafka does \(another server's port, or one for TLS"):
            check_reachable(settings(address))
        if answer != ALERT:
            with pytest.raises(Unreachable, match="speaks no TLS, which security_protocol=SSL wants"):
                check_reachable(settings(address, security_protocol="SSL"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file."""
    place = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", place / "key", "-out", place / "cert"], check=True, capture_output=True)
    (place / "both").write_bytes((place / "key").read_bytes() + (place / "cert").read_bytes())
    return place / "both"


def wants_certificates(context: ssl.SSLContext, certificate: Path) -> None:
    context.maximum_version, context.verify_mode = ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)


def hangs_up_without_a_name(context: ssl.SSLContext, _: Path) -> None:
    """As a router that finds the broker by the name which the client sends."""

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name != "localhost":
            connection.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # here it is an SSLSocket

    context.sni_callback = choose


def knows_no_name(context: ssl.SSLContext, _: Path) -> None:
    context.sni_callback = lambda *_: ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


def wants_tls_1_3(context: ssl.SSLContext, _: Path) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("configure", [wants_certificates, hangs_up_without_a_name, knows_no_name, wants_tls_1_3])
def test_a_broker_may_refuse_the_handshake_that_only_asks_whether_it_speaks_tls(
    configure: Callable[[ssl.SSLContext, Path], None], certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    configure(context, certificate)

    def talk(connection: socket.socket) -> None:
        with suppress(OSError), closing(context.wrap_socket(connection, server_side=True)) as encrypted:
            encrypted.recv(1)

    with server(talk) as address:
        found = settings(address.replace("127.0.0.1", "localhost"), security_protocol="SSL")
        assert unreachable_reason(found, 60.0) == ""


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


def test_a_request_with_a_time_of_its_own_says_that_time() -> None:
    patient = settings("127.0.0.1:1", request_timeout="60")
    refused = pytest.raises(Unreachable, match=r"answered within 0\.3 s: listing groups")
    with closing(ClusterAdmin(patient)) as cluster, refused:
        cluster.groups(timeout=0.3)
