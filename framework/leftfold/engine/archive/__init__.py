"""A log whose beginning is in an archive: gaps, reading both as one, and retention.

Files are in parquet.
"""
