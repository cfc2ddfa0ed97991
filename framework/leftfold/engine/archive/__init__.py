"""A log whose beginning is in an archive: reading both as one, and retention.

Files are in parquet.
"""
