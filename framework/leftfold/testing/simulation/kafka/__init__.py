"""A Kafka cluster that is simulated, and confluent-kafka's clients over it.

Brokers keep partitions, transactions and groups; clients do what librdkafka does in the background. Nothing here
knows Leftfold beyond its partitioner.
"""
