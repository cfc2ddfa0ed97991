"""Leftfold: event sourcing and CQRS for Python microservices on Kafka, Spark and Redis. State is a left fold."""

from __future__ import annotations

from leftfold.app import App
from leftfold.connection import Connection, connect
from leftfold.decider import Decider
from leftfold.envelope import Receipt, Recorded
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
    LogHole,
    OutcomeUnknown,
    StaleViewError,
    ViewNotBuilt,
)
from leftfold.memory import World, memory
from leftfold.messages import Command, Event, Json
from leftfold.position import Position
from leftfold.process import Cancel, Finished, Process, Rejected, Timer
from leftfold.query import QueryView
from leftfold.reaction import Delivery, Reaction
from leftfold.reference import ReferenceFile
from leftfold.streamed import StreamedView
from leftfold.streaming import Streaming
from leftfold.version import __version__
from leftfold.view import FoldView, SpreadView, View

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
    "LogHole",
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
