"""The loyalty service: households earn points, reach tiers, and pay with points."""
