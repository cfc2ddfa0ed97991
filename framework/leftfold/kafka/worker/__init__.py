"""The worker of commands and process managers: membership, restore, transactions, replies."""
