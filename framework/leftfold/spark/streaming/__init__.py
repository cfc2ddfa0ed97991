"""Folded views kept up to date by Spark structured streaming."""
