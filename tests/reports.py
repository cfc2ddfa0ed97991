"""What the code under test reports to an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Reports"]


class Reports(list[tuple[str, Mapping[str, Any]]]):
    """The reports in their order, each as (what, details); it is called as any `Report` is."""

    def __call__(self, what: str, details: Mapping[str, Any]) -> None:
        self.append((what, details))

    def of(self, what: str) -> list[Mapping[str, Any]]:
        """The details of the reports of this name; other threads may report meanwhile."""
        return [details for name, details in list(self) if name == what]
