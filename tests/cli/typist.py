"""Types commands for tests, each in a process forked from one that has imported everything: a third of a second less.

`python typist.py SOCKET` listens there until its standard input ends. A request is JSON with the words, the directory
and the environment, and the three standard files beside it; the answer is the child's id, and later its exit code. The
child is as `python -m leftfold.cli` would be: its module search path, arguments, environment and directory are its own.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import select
import socket
import sys
from contextlib import suppress
from typing import Any

PACKAGES = ("leftfold.cli", "leftfold.engine", "leftfold.kafka", "leftfold.local", "leftfold.client", "leftfold.redis")
LONGEST = 1 << 20


def load() -> None:
    """Imports what commands import, so that children need not."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(module.name)
    gc.freeze()


def serve(listener: socket.socket) -> dict[str, Any]:
    """Answers until its standard input ends; returns, in a child, what that is to do."""
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        listener.close()
        text, files, _, _ = socket.recv_fds(connection, LONGEST, 3)
        child = os.fork()
        if not child:
            connection.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            found: dict[str, Any] = json.loads(text)
            return found
        connection.sendall(b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    sys.exit()


def become(request: dict[str, Any], path: list[str]) -> None:
    """Is from now on as the interpreter would be that was started with the request."""
    faulthandler.enable()  # whoever aborts it because it hangs sees where
    os.chdir(request["place"])
    os.environ.clear()
    os.environ.update(request["environment"])
    found = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [request["place"], *found, *path]
    sys.argv = [importlib.import_module("leftfold.cli").__path__[0] + "/__main__.py", *request["words"]]


if __name__ == "__main__":
    base = sys.path[1:]  # without the directory of this file
    load()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("listening", flush=True)
        request = serve(listener)
    become(request, base)
    importlib.import_module("leftfold.cli.main").main()
