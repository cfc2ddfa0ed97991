"""The Kafka adapter, on one broker."""
