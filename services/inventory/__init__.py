"""The inventory service: what each store has of each product, and for whom it is kept."""
