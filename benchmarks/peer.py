"""Runs a peer's program in an environment of its own, which is made from its pinned requirements and then kept."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figure import Figure
from leftfold.local import LocalSettings

__all__ = ["PROGRAMS", "NotInstalled", "against", "peer_python"]

PROGRAMS = Path(__file__).parent / "peers"
INSTALL_SECONDS, RUN_SECONDS = 600, 300
_WORDS = 300


class NotInstalled(Exception):
    """A peer cannot be installed here; the text says why."""


@dataclass(frozen=True)
class PeerRun:
    """What a peer's program says of its run: from the first event consumed to the last, its start left out."""

    events: int
    keys: int
    seconds: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds


def against(name: str, brokers: str, topic: str, events: int, keys: int, ours: Figure) -> Figure:
    """Our figure beside the better of two runs of a peer; without one and without a goal when it cannot be installed.

    Raises:
        SystemExit: the peer fails, or folds something else than so many events of so many keys.
    """
    try:
        runs = [_run_peer(name, brokers, topic, events, attempt) for attempt in range(2)]
    except NotInstalled as error:
        return replace(ours, goal=None, note=f"not compared, it cannot be installed here: {error}")
    for one in runs:
        if (one.events, one.keys) != (events, keys):
            raise SystemExit(f"{name} folded {one.events:,} events of {one.keys:,} keys, not {events:,} of {keys:,}")
    return replace(ours, peer=max(one.rate for one in runs))


def _run_peer(name: str, brokers: str, topic: str, events: int, attempt: int) -> PeerRun:
    """Lets a peer fold the topic, which knows nothing of its attempts before.

    Raises:
        NotInstalled: pip refuses one of its packages.
        SystemExit: the peer fails.
    """
    python = peer_python(name)
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        arguments = [brokers, topic, str(events), f"{folder}/state", f"{name}-{attempt}"]
        command = [str(python), "-P", str(PROGRAMS / f"{name}.py"), *arguments]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"{name} did not fold {events:,} events in {RUN_SECONDS} s: {error.stderr!r}") from error
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return PeerRun(**json.loads(done.stdout.splitlines()[-1]))


def peer_python(name: str) -> Path:
    """The Python of a peer's environment, which is made at first.

    Raises:
        NotInstalled: pip refuses one of its packages.
    """
    requirements = PROGRAMS / f"{name}.txt"
    digest = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:12]
    home = LocalSettings().cache / "peers" / f"{name}-{digest}"
    python, whole = home / "bin" / "python", home / "whole"
    if not whole.exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
        if done.returncode:
            raise NotInstalled(f"pip: {done.stderr.strip()[-_WORDS:]}")
        whole.touch()
    return python
