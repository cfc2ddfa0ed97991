"""Administration of a Kafka cluster: topics, consumer groups, ACLs, state topics and dead letters."""
