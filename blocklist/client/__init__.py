"""The client of the service: reads, writes, watches, and sessions of listeners."""
