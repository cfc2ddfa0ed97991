"""The Kafka client that sends commands and waits for their answers."""
