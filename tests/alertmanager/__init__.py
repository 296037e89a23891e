"""Recorded posts of Debian's Alertmanager 0.25, and synthetic ones."""
