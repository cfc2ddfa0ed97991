"""The trade with a raised version of its process, for parts that run by themselves."""

from __future__ import annotations

from tests.process.test_begun_again import raised

__all__ = ["app"]

app = raised()
