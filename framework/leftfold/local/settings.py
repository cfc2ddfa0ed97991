"""Settings of the embedded servers: data directory, ports, sizes."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local.files import write_whole

__all__ = ["HOST", "Listener", "LocalSettings", "Ports", "is_open"]


HOST = "127.0.0.1"

# Below the range of ephemeral ports, so that no outgoing connection uses a stored port.
_RANGE = range(20000, 32000)
_TRIES = 200


class Ports:
    """The ports of a data directory's servers, stored in `ports.json`."""

    def __init__(self, data: Path) -> None:
        self._file = data / "ports.json"
        self._stored: dict[str, int] = {}
        if self._file.is_file():
            self._stored = {str(name): int(port) for name, port in json.loads(self._file.read_text("utf-8")).items()}

    def take(self, name: str, wanted: int | None = None) -> int:
        """Return the port for a server to start with: the wanted one, else the stored one, else a new one.

        Raises:
            ConfigurationError: the port is taken.
        """
        port = wanted or self._stored.get(name) or self._choose()
        if not is_free(port):
            step = f"set LEFTFOLD_LOCAL_{name.upper()}_PORT" if wanted else f"remove {name!r} from {self._file}"
            raise ConfigurationError(
                f"port {port} of the embedded {name} is taken by another program; end that program, or {step} "
                "for another port"
            )
        if self._stored.get(name) != port:
            self._stored[name] = port
            write_whole(self._file, json.dumps(self._stored, indent=2) + "\n")
        return port

    def _choose(self) -> int:
        for port in random.SystemRandom().sample(_RANGE, _TRIES):
            if port not in self._stored.values() and is_free(port):
                return port
        raise InfrastructureError(f"no free port found between {_RANGE.start} and {_RANGE.stop} on {HOST}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_open(address: str, seconds: float) -> bool:
    """Return whether the port of an address, `host:port` or a URL, is open."""
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        socket.create_connection((str(url.hostname), int(url.port or 0)), seconds).close()
    except OSError:
        return False
    return True


class Listener(BaseModel):
    """A further listener of the broker, advertised under another port: room for a proxy in front.

    Args:
        name: upper case, other than PLAINTEXT and CONTROLLER.
        port: where the broker listens.
        advertised_port: where clients connect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    port: int
    advertised_port: int


class LocalSettings(BaseSettings):
    """Settings of the embedded servers: where they live, what they are made of and how large they may grow.

    Args:
        data: the directory of everything the servers store; `LEFTFOLD_DATA`.
        jars: a directory that holds the locked jars, for machines without a network; `LEFTFOLD_JARS`.
        ivy_settings: an Ivy settings file that names a mirror; `LEFTFOLD_IVY_SETTINGS`.
        cache_home: where caches of this user are; `XDG_CACHE_HOME`.
        java_home: a Java to try first; `JAVA_HOME`.
        path: where `java` and `redis-server` are looked for; `PATH`.
        secure: the servers require a login over TLS, with a user for each part of a service; stored with the data.
        redis_password: instead of the random one that is stored in `redis/password` of the data directory.
        kafka_port, redis_port: instead of the ports stored in the data directory.
        kafka_memory: the broker's heap, as in `-Xmx`.
        kafka_jvm: further flags; the defaults halve the broker's CPU time and start it 0.5 s sooner on two cores.
        kafka_properties: lines added to `server.properties`, which override Leftfold's.
        start_timeout, stop_timeout: seconds.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_LOCAL_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    data: Path = Field(default=Path(".leftfold"), validation_alias="LEFTFOLD_DATA")
    jars: Path | None = Field(default=None, validation_alias="LEFTFOLD_JARS")
    ivy_settings: Path | None = Field(default=None, validation_alias="LEFTFOLD_IVY_SETTINGS")
    cache_home: Path = Field(default=Path("~/.cache"), validation_alias="XDG_CACHE_HOME")
    java_home: Path | None = Field(default=None, validation_alias="JAVA_HOME")
    path: str = Field(default="", validation_alias="PATH")
    kafka_port: int | None = None
    kafka_memory: str = "768m"
    kafka_jvm: tuple[str, ...] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    kafka_properties: dict[str, str] = Field(default_factory=dict)
    kafka_listeners: tuple[Listener, ...] = ()
    redis_port: int | None = None
    secure: bool = False
    redis_password: SecretStr | None = None
    start_timeout: float = 180.0
    stop_timeout: float = 20.0

    @property
    def cache(self) -> Path:
        """Leftfold's directory in the user's cache directory.

        Raises:
            ConfigurationError: the environment names no home directory, and this user has none.
        """
        try:
            return self.cache_home.expanduser() / "leftfold"
        except RuntimeError as error:
            raise ConfigurationError(
                "this user has no home directory for caches; set HOME or XDG_CACHE_HOME"
            ) from error
