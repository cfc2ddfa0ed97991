"""Live projections: decoding events, folding rows, subscriptions and generations.

Folding a whole log is in engine/rebuild.
"""
