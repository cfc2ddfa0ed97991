"""Spark, in one session, with one broker and one Redis."""
