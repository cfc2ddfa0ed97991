"""The baskets service: from an empty basket to a receipt."""
