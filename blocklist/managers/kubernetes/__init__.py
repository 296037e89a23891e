"""Kubernetes: blocked nodes carry a taint of this manager, which keeps new pods off. docs/kubernetes.md.

`plan.py`, which decides on the taint, is pure; `api_server.py` has the requests; `cordon_mirror.py` tells the service
of cordons. The cache of the nodes, evictions, events and the lease have a thread each; `running.py` starts them.
"""
