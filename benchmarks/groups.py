"""The groups of benchmarks, in the order in which they run and are shown."""

GROUPS = {
    "reads": "GET /blocklist from 64 connections, compared with nginx, bare ASGI and Flink.",
    "sizes": "GET /blocklist of 1, 100 and 10,000 nodes: throughput and CPU.",
    "writes": "Durable PUTs, compared with etcd and with the disk.",
    "replicas": "Durable PUTs on PostgreSQL, compared with SQLite; two and three replicas, compared with one.",
    "mixed": "GET /blocklist while the list changes 100 times per second.",
    "polls": "10,000 drivers that poll the list every five seconds.",
    "drivers": "10,000 drivers that wait for the next table: at rest, and one change.",
    "watch": "One change to 1,000 watchers.",
    "watch-10k": "One change to 10,000 watchers, and the memory per watcher.",
    "push": "One change to 1,000 listeners with a callback.",
    "heartbeats": "Heartbeats of 5,000 listeners, and 1,000 agents.",
    "nodes": "10,000 nodes with labels, reported by one manager: pages, selectors, heartbeats, memory.",
    "memory": "Resident memory, and whether it grows.",
    "long-log": "A change log with a million changes: start-up, memory, reads, and reads during compaction.",
    "command": "Start-up time of the `blocklist` command.",
    "spark": "Time until a block is in force in Spark, and the overhead of the agent.",
    "agent": "What the agent costs a driver that obeys by configuration alone, and how soon it acts.",
}
LONG = {
    "detection-speed": "Throughput of reading event logs.",
    "detection": "Precision and recall of the detection.",
}
"""Groups that take an hour or more; they run only if named."""
