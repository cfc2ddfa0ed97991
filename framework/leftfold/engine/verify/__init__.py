"""Comparing views with the log: verification, differences, the history of a row, parked rows."""
