"""The log as Spark DataFrames and tables."""
