"""Alertmanager's webhook: firing alerts block nodes, resolved alerts free them."""
