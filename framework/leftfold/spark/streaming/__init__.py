"""Folding views by Spark streaming."""
