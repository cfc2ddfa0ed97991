"""A stream of a query view that believes its checkpoint, for tests of what the marks are good for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leftfold.ports.flush import Generation
from leftfold.spark.queries.incremental_batches import CheckpointDirectory
from leftfold.spark.queries.query_stream import QueryStream
from tests.spark.query_streams import Streaming

__all__ = ["Trusting"]


class TrustingCheckpoint(CheckpointDirectory):
    """Goes on from wherever Spark's checkpoint is, whatever the marks say."""

    def resumable(self, run: str, batch: int | None, files: Any) -> Path | None:
        return self._of(run)


class TrustingStream(QueryStream):
    def checkpoint(self, generation: Generation) -> CheckpointDirectory:
        return TrustingCheckpoint(self._places.checkpoints, self._view.name, generation.id)


class Trusting(Streaming):
    kind = TrustingStream
