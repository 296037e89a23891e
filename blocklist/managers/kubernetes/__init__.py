"""Kubernetes: blocked nodes carry a taint of this manager, which keeps new pods off. docs/kubernetes.md.

`plan.py` is pure; `api_server.py` has the requests; the cache of the nodes, evictions, events and the lease have a
thread each; `running.py`, which has the lease, puts them together.
"""
