"""Reactions: which event is handled when, retries, deadlines and parking.

Consuming topics is in kafka/reactions.
"""
