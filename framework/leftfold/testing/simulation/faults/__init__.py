"""The faults of a simulated world: their kinds, their injection, and the operator who answers damage to topics."""
