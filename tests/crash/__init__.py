"""Kill the service repeatedly while clients write and watch: `python -m tests.crash --kills 200`."""
