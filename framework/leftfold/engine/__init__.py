"""The loops of an event-sourced service over ports: processing, projections, rebuilds, verification.

Nothing here knows Kafka, Redis or Spark.
"""
