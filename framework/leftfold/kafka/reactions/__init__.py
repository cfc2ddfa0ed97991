"""The consumer of reactions: delivery, parked events, and where a reaction began."""
