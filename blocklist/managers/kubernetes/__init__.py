"""Kubernetes: blocked nodes carry a taint of this manager, which keeps new pods off. docs/kubernetes.md.

`plan.py` and what it imports are pure; `api_server.py` has the requests; `node_cache.py`, `eviction.py`, `events.py`
and the lease have a thread each; `running.py`, which has the lease, puts them together.
"""
