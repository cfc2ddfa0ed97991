"""The archive; all of it shares a broker, a Redis and a session of Spark."""
