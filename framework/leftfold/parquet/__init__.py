"""The log's past as Parquet files, on any file system that pyarrow knows."""
