"""Rebuilds: planning, folding the whole log into a new generation, and the swap.

Running tasks on Spark is in spark/core.
"""
