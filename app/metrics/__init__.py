"""Prometheus metrics: counters that the service increments, and collectors that read its state."""
