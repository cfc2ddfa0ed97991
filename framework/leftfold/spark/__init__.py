"""Spark beside Leftfold: rebuilds of views, views by SQL and DataFrames, and the log as DataFrames."""

from leftfold.spark.event_tables import event_tables
from leftfold.spark.frame_view import FrameView
from leftfold.spark.frames import events, states
from leftfold.spark.session import open_session, spark_session
from leftfold.spark.settings import SparkSettings

__all__ = ["FrameView", "SparkSettings", "event_tables", "events", "open_session", "spark_session", "states"]
