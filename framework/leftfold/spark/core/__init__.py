"""Spark sessions, the jobs of rebuilds, and what tasks exchange with the driver."""
