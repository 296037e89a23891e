"""Pushes to listeners with a callback: signed webhooks, retried, ResourceManagers first."""
