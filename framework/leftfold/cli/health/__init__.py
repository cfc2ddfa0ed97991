"""Commands on health: status and doctor."""
