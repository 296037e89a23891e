"""The bodies of requests and responses, and their conversion to the model."""
