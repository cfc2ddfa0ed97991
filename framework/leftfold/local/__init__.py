"""Embedded servers for one machine: a Kafka broker and a Redis as child processes with one data directory.

`up` leaves them running until `down`; `embedded` stops them with the calling process. Nothing here is needed where the
addresses of other servers are configured.
"""

from leftfold.local.embedded_servers import ALL, ServerStatus, Status, down, embedded, ended, kill, restart, status, up
from leftfold.local.files import Progress, StderrProgress
from leftfold.local.jars import spark_jars
from leftfold.local.java import java_home
from leftfold.local.launch import Servers
from leftfold.local.settings import Listener, LocalSettings

__all__ = [
    "ALL",
    "Listener",
    "LocalSettings",
    "Progress",
    "ServerStatus",
    "Servers",
    "Status",
    "StderrProgress",
    "down",
    "embedded",
    "ended",
    "java_home",
    "kill",
    "restart",
    "spark_jars",
    "status",
    "up",
]
