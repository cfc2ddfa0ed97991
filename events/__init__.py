"""What happens in the chain: one module per bounded context, shared by services and projections."""
