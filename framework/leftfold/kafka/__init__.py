"""Kafka: the log, the commands and their answers, by confluent-kafka."""
