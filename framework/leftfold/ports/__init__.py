"""Protocols between the engine and technology: stores, logs, queries, flushes, notifications.

No code of a vendor lives here; adapters are in kafka, redis, spark, faust, parquet and memory.
"""
