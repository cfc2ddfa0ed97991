"""Given, when, then for deciders and folds for views: plain functions, no test runner needed."""

from __future__ import annotations

from leftfold.testing.folding import fold
from leftfold.testing.properties import check_deciding_twice, check_interleavings
from leftfold.testing.reactions import GivenProcess, ThenSent
from leftfold.testing.redelivery import check_redelivery
from leftfold.testing.specification import Given, Then, given

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
