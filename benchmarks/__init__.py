"""Compares the service with similar systems: `python -m benchmarks [reads|writes|watch|memory …]`."""
