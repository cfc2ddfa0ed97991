"""A process that is killed while it removes a view that its App does not declare."""

from __future__ import annotations

import os
import signal
import sys

from leftfold.engine.views.cleanup import remove, remove_undeclared, undeclared_view
from leftfold.ports.flush import Generation
from leftfold.redis import RedisSettings, RedisViewStore
from tests.domains.ledger import by_tag


class _Fatal(RedisViewStore):
    """A store that removes the first bucket of a generation, and does not live to see the end of it."""

    def unlink(self, generation: Generation) -> None:
        """Dies behind its first bucket."""
        super().unlink(Generation(generation.view, generation.id, "", False, 1, {}))
        os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, how: str) -> None:
    """Removes the view, or generation after generation as others are removed."""
    store = _Fatal(RedisSettings(url=url))
    found = undeclared_view(store, by_tag.name)
    assert found is not None
    if how == "whole":
        remove_undeclared(store, found)
    for generation in found.generations:
        remove(store, generation)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
