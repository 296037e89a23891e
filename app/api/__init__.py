"""The routers: what the service answers over HTTP."""
