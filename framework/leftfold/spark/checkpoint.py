"""The checkpoint of a stream on disk: one directory per generation, in it one per run, moved from run to run.

A run that takes over renames the directory of the run before to its own. Whoever still writes under the old name writes
where nobody looks, so the files of two runs never mix.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from leftfold.position import Position

__all__ = ["Checkpoint", "sweep"]

_FILES = "references.json"


class Checkpoint:
    """The checkpoints of one generation.

    Args:
        root: where all checkpoints are: a directory that every driver sees. generation: its id.
    """

    def __init__(self, root: Path, view: str, generation: str) -> None:
        self._home = root / view / generation

    def begin(self, run: str, files: Mapping[str, str]) -> Path:
        """Makes the directory of the first run; `files` are the fingerprints of the reference files it begins with."""
        (self._home / run).mkdir(parents=True)
        (self._home / _FILES).write_text(json.dumps(dict(files)), "utf-8")
        return self._home / run

    def resumable(self, run: str, batch: int | None, files: Mapping[str, str]) -> Path | None:
        """The directory from which a stream goes on whose marks say this run and batch; None when it cannot.

        It can when the marks are behind the last batch that the checkpoint has committed, or behind the one it has
        planned: that one is computed again, and what is written already stays.
        """
        found = self._of(run)
        if found is None or batch is None or self._files() != dict(files):
            return None
        committed, planned = _newest(found / "commits"), _newest(found / "offsets")
        behind = batch == committed or (batch == planned == committed + 1)
        return found if behind and planned <= committed + 1 else None

    def take(self, found: Path, run: str) -> Path:
        """Moves the directory to a new run."""
        return found.rename(self._home / run)

    def remove(self) -> None:
        """Removes everything of the generation."""
        shutil.rmtree(self._home, ignore_errors=True)

    @classmethod
    def committed(cls, path: Path) -> Position:
        """Where a stream goes on that takes a run's directory over."""
        try:
            return cls.reached(path, _newest(path / "commits"))
        except (OSError, ValueError):
            return Position()  # nothing is committed yet, or files are lost, which Spark will say

    @staticmethod
    def reached(path: Path, batch: int) -> Position:
        """The ends of a batch, as the checkpoint planned it."""
        *_, source = (path / "offsets" / str(batch)).read_text("utf-8").splitlines()
        return Position({topic: {int(p): o for p, o in ends.items()} for topic, ends in json.loads(source).items()})

    def _of(self, run: str) -> Path | None:
        """The run's own directory, or the only one there is: its new owner may have died before it could move it."""
        there = [path for path in self._home.glob("*") if path.is_dir()]
        named = [path for path in there if path.name == run]
        return next(iter(named or there)) if named or len(there) == 1 else None

    def _files(self) -> Mapping[str, str]:
        try:
            found: dict[str, str] = json.loads((self._home / _FILES).read_text("utf-8"))
        except (OSError, ValueError):
            return {"": "unreadable"}
        return found


def sweep(root: Path, view: str, generations: Collection[str]) -> None:
    """Removes checkpoints of generations that are gone."""
    for home in (root / view).glob("*"):
        if home.name not in generations:
            shutil.rmtree(home, ignore_errors=True)


def _newest(folder: Path) -> int:
    """The highest batch that has a file, -1 when none has."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)
