"""The registered listeners: the directory in memory, leases, reports, and what replicas share of them."""
