"""The HTTP API: routers, and what they share."""
