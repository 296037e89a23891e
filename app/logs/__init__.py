"""Logging: its setup, the change log, request ids."""
