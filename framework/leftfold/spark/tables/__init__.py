"""The log as DataFrames and tables."""
