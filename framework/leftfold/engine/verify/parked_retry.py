"""Folds parked keys again from the beginning: they are freed if the fold was fixed, else they stay parked."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from leftfold.engine.verify.history import RowsFold
from leftfold.engine.views.folded_rows import NO_KEY, FoldedBucket, StepwiseFold, stored_row
from leftfold.engine.views.generations import whole_checkpoints
from leftfold.errors import ContractError, InfrastructureError
from leftfold.model.keys import NO_ROW
from leftfold.model.rows import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation
from leftfold.ports.protocols import ViewStore

__all__ = ["Retried", "RowRetry"]

_PATIENCE = 60.0


@dataclass(frozen=True)
class Retried:
    """The result of a retry: the freed keys, and those that stay parked with the reason."""

    freed: tuple[str, ...]
    parked: Mapping[str, str]


class RowRetry:
    """Frees parked keys of one generation while projectors run.

    Each bucket is flushed under its token, as projectors flush it.
    """

    def __init__(self, view: View[Any, Any], store: ViewStore, open_log: OpenBulkLog) -> None:
        self.view, self._store, self._open_log = view, store, open_log

    def run(self, generation: Generation, keys: Collection[str] = ()) -> Retried:
        """Folds parked keys again; those whose fold succeeds get their row and are freed.

        Args:
            keys: encoded; all parked ones when none is named.

        Raises:
            ContractError: one of the keys is not parked.
            InfrastructureError: projectors wrote all the time, and no flush succeeded within a minute.
        """
        checkpoints = whole_checkpoints(self._store, generation)
        parked = {key: bucket for bucket, checkpoint in checkpoints.items() for key in checkpoint.parked}
        for key in keys:
            if key not in parked:
                there = f"parked are {', '.join(sorted(parked))}" if parked else "nothing is parked there"
                raise ContractError(f"{key} is not parked in view {self.view.name}; {there}")
        unknown, why = NO_ROW, "its events name no row; if they belong to rows, correct key= and rebuild"
        if generation.stream_keyed:
            unknown, why = self.view.keys.encode(NO_KEY), "its events have no readable key; correct the log or rebuild"
        wanted = {key: bucket for key, bucket in parked.items() if (not keys or key in keys) and key != unknown}
        freed: list[str] = []
        still = {unknown: why} if unknown in parked else {}
        with closing(self._open_log()) as log:
            for bucket in sorted(set(wanted.values())):
                mine = [key for key, of in wanted.items() if of == bucket]
                rows = RowsFold(self.view, generation, log, dict.fromkeys(mine, checkpoints[bucket].position))
                freed += self._free(generation, bucket, rows)
                still |= {key: row.parked.error for key, row in rows.rows.items() if row.parked is not None}
        return Retried(tuple(sorted(freed)), still)

    def _free(self, generation: Generation, bucket: int, fold: RowsFold) -> list[str]:
        """Folds the rows up to the bucket's checkpoint and writes them, again whenever a projector was faster."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            checkpoint = self._store.checkpoints(generation)[bucket]
            fold.go_on(checkpoint.position)
            whole = {k: r for k, r in fold.rows.items() if r.parked is None and k in checkpoint.parked}
            if not whole or self._store.flush([self._flush(generation, bucket, checkpoint, whole)]):
                return list(whole)
        raise InfrastructureError(
            f"view {self.view.name}: bucket {bucket} of {generation.id} was written all the while; try again, or stop "
            f"the projectors for a moment"
        )

    def _flush(
        self, generation: Generation, bucket: int, checkpoint: Checkpoint, rows: Mapping[str, StepwiseFold]
    ) -> BucketFlush:
        codec, changes = self.view.rows, []
        folded = FoldedBucket.of(checkpoint)
        stored = self._store.read(generation, [(bucket, key) for key in rows]).rows
        for (key, replayed), fields in zip(rows.items(), stored, strict=True):
            row = stored_row(self.view, folded, key, fields)
            if isinstance(row.row, ContractError):
                raise row.row
            # The checksum leaves out a parked row.
            row.row, row.version, row.digest = replayed.good, replayed.version, 0
            changes.append(row.change(self.view))
            del folded.parked[key]
        checksum, token = folded.checksum % CHECKSUM_MODULUS, secrets.token_hex(8)
        moved = replace(checkpoint, checksum=checksum, rows=folded.rows, token=token, parked=folded.parked)
        return BucketFlush(generation, bucket, checkpoint.token, moved, codec.columns, codec.indexes, tuple(changes))
