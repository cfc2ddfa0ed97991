"""Which SQL is allowed, and whether a query can be kept up to date incrementally."""
