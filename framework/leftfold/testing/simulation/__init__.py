"""A simulated Kafka and Redis for an App's shipped workers and clients, under seeded schedules and virtual time.

`simulate` runs an App under many schedules. The parts: `kafka` (the cluster and its clients), `redis_server`,
`network`, `scheduler` and `environment` (tasks and time), `takeover` (replacements in the shipped modules), `faults`,
`witness`, `projections`, `deployment`.
"""

from __future__ import annotations

from leftfold.testing.simulation.schedules import Report, Scenario, ScheduleResult, run, scheduled, shrink, simulate

__all__ = ["Report", "Scenario", "ScheduleResult", "run", "scheduled", "shrink", "simulate"]
