"""A demo with a real Spark cluster on one machine, and the tools for it."""
