"""A simulated Kafka on which an App's shipped workers and clients run under seeded schedules, where time is a number.

`simulate` runs an App under many of them. The parts below: `kafka` (the cluster and its clients), `scheduler` and
`world` (tasks and time), `takeover` (what is exchanged in the shipped modules), `faults`, `witness`, `deployment`.
"""

from __future__ import annotations

from leftfold.testing.simulation.schedules import Report, Scenario, ScheduleResult, run, scheduled, shrink, simulate

__all__ = ["Report", "Scenario", "ScheduleResult", "run", "scheduled", "shrink", "simulate"]
