"""Micro-batches of stream processors: their generations, and writing their rows.

Spark's own part is in spark/streaming.
"""
