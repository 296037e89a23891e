"""The groups of benchmarks, in the order in which they are run and shown, each with what it asks."""

GROUPS = {
    "reads": "GET /blocklist, 64 connections: how many a second, beside nginx, bare ASGI and Flink.",
    "sizes": "GET /blocklist of 1, 100 and 10,000 nodes: does a GET cost more, but for its bytes?",
    "writes": "Durable PUTs, beside etcd and the disk itself.",
    "replicas": "Durable PUTs on PostgreSQL, beside SQLite; two replicas, and how soon one shows what the other did.",
    "beside": "GET /blocklist while the list changes a hundred times a second.",
    "polls": "10,000 drivers that ask for the list every five seconds.",
    "watch": "One change to 1,000 watchers.",
    "crowd": "One change to 10,000 watchers, and what each of them costs.",
    "push": "One change to 1,000 listeners with a callback.",
    "heartbeats": "Heartbeats of 5,000 listeners, and 1,000 agents.",
    "memory": "Resident memory, and whether it grows.",
    "long-log": "A million changes in the log: start, memory, reads, and reads while it is compacted.",
    "command": "How soon `blocklist` answers in a shell.",
    "spark": "How soon a block holds in Spark, and what the agent costs a job.",
}
LONG = {
    "detection-speed": "How fast event logs are read.",
    "detection": "How well faults are found.",
}
"""An hour or two, so only when named."""
