"""Spark sessions and jobs that rebuilds share."""
