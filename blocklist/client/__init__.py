"""The client of the service: reads, writes, watches, and the session of a registered listener."""
