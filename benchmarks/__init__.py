"""The service beside its peers, in one run: `python -m benchmarks [reads|writes|watch|memory …]`."""
