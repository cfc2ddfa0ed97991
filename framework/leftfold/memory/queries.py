"""Reads of a memory world: folded views as in production; no SQL runs here."""

from __future__ import annotations

from typing_extensions import TypeVar

from leftfold.errors import ConfigurationError
from leftfold.reading import Reader, Views
from leftfold.view import View

__all__ = ["FoldedViews"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


class FoldedViews(Views):
    """The views of a memory world; asking for one that needs Spark says what to do instead."""

    def __getitem__(self, view: View[Row, K], /) -> Reader[Row, K]:
        """The reader of a view.

        Raises:
            ConfigurationError: the view is computed by SQL or DataFrames.
        """
        if view.streamed:
            raise ConfigurationError(f"view {view.name} is kept by a stream of its own, and memory(app) runs none")
        if not view.folded:
            raise ConfigurationError(
                f"view {view.name} is computed by Spark, and memory(app) runs none; in tests: "
                f"from leftfold.spark.testing import rows; rows({view.name}, event, ...)"
            )
        return super().__getitem__(view)
