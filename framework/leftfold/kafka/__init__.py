"""The Kafka adapter, on confluent-kafka: reads and writes the event log, commands and replies."""
