"""What one can run at home: a real Spark cluster on one machine, and the tools for it."""
