"""Given/when/then for deciders and processes, and folds of views: plain functions, for any test runner."""

from __future__ import annotations

from leftfold.testing.properties import check_deciding_twice, check_interleavings, check_redelivery
from leftfold.testing.specification import Given, GivenProcess, Then, ThenSent, fold, given

__all__ = [
    "Given",
    "GivenProcess",
    "Then",
    "ThenSent",
    "check_deciding_twice",
    "check_interleavings",
    "check_redelivery",
    "fold",
    "given",
]
