"""A master, its replica and three sentinels that watch them, as child processes on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from redis import Redis

from leftfold.redis import RedisSettings
from tests.free_ports import free_port
from tests.redis.server import RedisServer, answers, binary, lose
from tests.waiting import wait_until

__all__ = ["Sentinel", "SentinelSet"]

SERVICE = "rows"
QUORUM = 2
"""Seconds: a sentinel that could not run for two does nothing for the next thirty, and that may come again."""
DOWN_AFTER = 4000
"""Milliseconds: a replica is no candidate once its link has been down for ten times that, longer than such thirty s."""


class Sentinel:
    """One sentinel, which rewrites its own configuration as it learns."""

    def __init__(self, directory: Path, master: int, password: str | None = None) -> None:
        self.port, self._directory, self._password = free_port(), directory, password
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master} {QUORUM}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}",
            f"sentinel failover-timeout {SERVICE} 3000",
            *((f"requirepass {password}", f"sentinel auth-pass {SERVICE} {password}") if password else ()),
        )
        (directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def client(self) -> Redis:
        return Redis(port=self.port, password=self._password)

    def start(self) -> None:
        with (self._directory / "sentinel.log").open("ab") as log:
            command = [binary(), str(self._directory / "sentinel.conf"), "--sentinel"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: answers(self.client()), f"the sentinel on port {self.port}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def reported(self) -> dict[str, Any]:
        with self.client() as client:
            reported: dict[str, Any] = client.sentinel_master(SERVICE)
            return reported


class SentinelSet:
    """Two servers, of which one leads, and the sentinels that see to it; they have one password, if any."""

    def __init__(self, directory: Path, password: str | None = None) -> None:
        self.password = password
        fast = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
        first = RedisServer(directory / "0", password, options=fast)
        follows = {"replicaof": f"127.0.0.1 {first.port}"}
        self.servers = [first, RedisServer(directory / "1", password, options=fast | follows)]
        self.sentinels = [Sentinel(directory / f"sentinel-{n}", first.port, password) for n in range(3)]

    @property
    def settings(self) -> RedisSettings:
        """How to reach the server that leads; short timeouts, for tests kill servers."""
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        login, secret = (f":{self.password}@", SecretStr(self.password)) if self.password else ("", None)
        url = f"redis+sentinel://{login}{places}/{SERVICE}/0"
        return RedisSettings(url=url, sentinel_password=secret, timeout=5.0, connect_timeout=1.0)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for sentinel in self.sentinels:
            sentinel.start()
        self.wait_settled()

    def kill(self) -> None:
        for sentinel in self.sentinels:
            sentinel.kill()
        for server in self.servers:
            server.kill()

    @property
    def master(self) -> RedisServer:
        """The server that most sentinels name."""
        ports = sorted(int(sentinel.reported()["port"]) for sentinel in self.sentinels)
        return next(server for server in self.servers if server.port == ports[len(ports) // 2])

    @property
    def replica(self) -> RedisServer:
        """The other one."""
        return self.servers[1 - self.servers.index(self.master)]

    def wait_settled(self) -> None:
        """Waits until one server leads, the other follows it, and every sentinel knows so."""
        wait_until(self._settled, "a master, a replica of it and three sentinels who agree")

    def wait_promoted(self, server: RedisServer) -> None:
        """Waits until every sentinel names this server."""
        awaited = f"port {server.port} to be promoted"
        wait_until(lambda: all(s.reported()["port"] == server.port for s in self.sentinels), awaited)
        wait_until(lambda: role(server) == "master", awaited)

    def lose(self, happens: Callable[[], object]) -> None:
        """Lets something happen that the master never tells its replica, and kills the master."""
        replica = self.replica
        lose(self.master, replica, happens)
        self.wait_promoted(replica)

    def bring_back(self) -> None:
        """Starts what was killed and waits until it follows."""
        for server in self.servers:
            if not server.runs:
                # Otherwise it would come back as a master, and sentinels take their time to believe that.
                server.options["replicaof"] = f"127.0.0.1 {self.master.port}"
                server.start()
        self.wait_settled()

    def _settled(self) -> bool:
        reported = [sentinel.reported() for sentinel in self.sentinels]
        if not all(one["num-slaves"] == 1 and one["num-other-sentinels"] == 2 for one in reported):
            return False
        if len({one["port"] for one in reported}) > 1 or any("down" in one["flags"] for one in reported):
            return False
        with self.replica.client() as client:
            link = client.info("replication")
        linked = link["role"] == "slave" and link["master_link_status"] == "up"
        return linked and link["master_port"] == self.master.port and role(self.master) == "master"


def role(server: RedisServer) -> str:
    with server.client() as client:
        return str(client.info("replication")["role"])
