"""Endpoints for other systems that post in their own format."""
