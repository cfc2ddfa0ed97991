"""Spark beside Leftfold: rebuilds of views, and the log as DataFrames."""

from leftfold.spark.frames import events, states
from leftfold.spark.session import open_session, spark_session
from leftfold.spark.settings import SparkSettings
from leftfold.spark.tables import event_tables

__all__ = ["SparkSettings", "event_tables", "events", "open_session", "spark_session", "states"]
