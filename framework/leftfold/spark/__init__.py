"""Spark beside Leftfold: rebuilds of views, and the log as DataFrames."""
