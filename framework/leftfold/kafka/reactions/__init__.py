"""The Kafka consumer of reactions: delivery, parked events and start offsets."""
