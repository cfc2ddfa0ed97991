"""The Kafka worker for commands and process managers: group membership, state restore, transactions and replies."""
