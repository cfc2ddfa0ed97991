"""Why a command got no answer, as far as the cluster can tell cheaply."""

from __future__ import annotations

import threading
import time

from leftfold import names
from leftfold.errors import LeftfoldError
from leftfold.kafka.cluster import Cluster

__all__ = ["Silence"]

_ASK_SECONDS = 1.0
_KEEP_SECONDS = 5.0


class Silence:
    """Asks who decides a category; thousands of commands that time out together ask once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def why(self, category: str) -> str:
        """A reason in words, with what to do about it."""
        with self._lock:
            asked, reason = self._known.get(category, (-_KEEP_SECONDS, ""))
            if time.monotonic() - asked > _KEEP_SECONDS:
                reason = self._ask(category)
                self._known[category] = time.monotonic(), reason
            return reason

    def _ask(self, category: str) -> str:
        topic, start = names.commands(category), f"start one: leftfold run {category}"
        try:
            owners = self._cluster.owners(category, timeout=_ASK_SECONDS)
        except LeftfoldError as error:
            return f"no answer before the deadline ({error})"
        if not owners:
            return f"no worker owns {topic} (there is no group of workers); {start}"
        groups = ", ".join(f"{group} has {members}" for group, members in sorted(owners.items()))
        if not any(owners.values()):
            return f"no worker owns {topic} (group {groups} members); {start}"
        return f"no answer before the deadline, though group {groups} members; how far behind are they? leftfold status"
