"""Leftfold: event sourcing and CQRS for Python microservices on Kafka, Spark and Redis.

State is a left fold over the log of events.
"""

from __future__ import annotations

from leftfold.errors import (
    ChangesNotKept,
    ConfigurationError,
    ConflictError,
    ContractError,
    DecisionFailed,
    DomainError,
    Fenced,
    InfrastructureError,
    LeftfoldError,
    LogGap,
    OutcomeUnknown,
    StaleViewError,
    ViewNotBuilt,
)
from leftfold.memory import World, memory
from leftfold.model.app import App, Streaming
from leftfold.model.computed_views import QueryView, ReferenceFile, StreamedView
from leftfold.model.decider import Decider
from leftfold.model.messages import Command, Event, Json
from leftfold.model.position import Position, Receipt, Recorded
from leftfold.model.process import Cancel, Finished, Process, Rejected, Timer
from leftfold.model.reaction import Delivery, Reaction
from leftfold.model.view import FoldView, SpreadView, View
from leftfold.runtime.connect import Connection, connect
from leftfold.version import __version__

__all__ = [
    "App",
    "Cancel",
    "ChangesNotKept",
    "Command",
    "ConfigurationError",
    "ConflictError",
    "Connection",
    "ContractError",
    "Decider",
    "DecisionFailed",
    "Delivery",
    "DomainError",
    "Event",
    "Fenced",
    "Finished",
    "FoldView",
    "InfrastructureError",
    "Json",
    "LeftfoldError",
    "LogGap",
    "OutcomeUnknown",
    "Position",
    "Process",
    "QueryView",
    "Reaction",
    "Receipt",
    "Recorded",
    "ReferenceFile",
    "Rejected",
    "SpreadView",
    "StaleViewError",
    "StreamedView",
    "Streaming",
    "Timer",
    "View",
    "ViewNotBuilt",
    "World",
    "__version__",
    "connect",
    "memory",
]
