"""Views that Spark computes: as a whole, or incrementally."""
