"""The Kafka worker for commands and process managers: poll, state restore, transactions and replies.

Rebalances are in kafka/consumer_group, which routers and reactions share.
"""
