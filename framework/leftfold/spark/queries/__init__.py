"""Views that Spark computes from tables of events: as a whole, or incrementally."""
