"""The blocklist service: the one authority that keeps the list. Runs from a checkout or the image."""
