"""End to end: a real service process, a real standalone Spark cluster of three workers, real tasks."""
