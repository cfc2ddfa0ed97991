"""Spark for Leftfold: rebuilds of views, views by SQL and DataFrames, and the log as DataFrames."""

from leftfold.spark.core.session import SparkSettings, open_session, spark_session
from leftfold.spark.queries.compute import FrameView
from leftfold.spark.tables.frames import event_tables, events, states

__all__ = ["FrameView", "SparkSettings", "event_tables", "events", "open_session", "spark_session", "states"]
