"""The archive of the event log: Parquet files on any file system that pyarrow supports."""
