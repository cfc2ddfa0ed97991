"""A simulated Kafka cluster, and confluent-kafka's clients for it.

Brokers hold partitions, transactions and groups; clients do what librdkafka does in the background. Nothing here
depends on Leftfold except for its partitioner.
"""
