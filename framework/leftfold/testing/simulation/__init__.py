"""A simulated Kafka and Redis on which the shipped code runs under a seeded schedule, where time is a number."""
