"""The groups of benchmarks, in the order in which they run and are shown."""

GROUPS = {
    "reads": "GET /blocklist from 64 connections, compared with nginx, bare ASGI and Flink.",
    "sizes": "GET /blocklist of 1, 100 and 10,000 nodes: throughput and CPU.",
    "writes": "Durable PUTs, compared with etcd and with the disk.",
    "replicas": "Durable PUTs on PostgreSQL, compared with SQLite; replicas that change the list at the same time.",
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
    "page-map": "The map of 10,000 hosts on the page: CPU of the service, and Chromium.",
    "spark": "Time until a block is in force in Spark, and the overhead of the agent.",
    "yarn": "The YARN manager with 1,000 nodes: marks, evacuations, cost at rest; containers and a Spark job on YARN.",
    "agent": "What the agent costs a driver that obeys by configuration alone, and how soon it acts.",
    "breaker": "A host that swallows tasks: what applications lose, compared with Spark's HealthTracker alone.",
}
LONG = {
    "estate": "Tens of thousands of drivers on three replicas: one block, and restarts.",
    "executors": "A driver of 2 GB with 2,000 executors, half of them on blocked hosts.",
    "flink": "Time until a block is in force in Flink, evacuation, renewals, and memory of the bridge.",
    "kubernetes": "The Kubernetes manager with 1,000 and 5,000 nodes: one block, many, start, memory; Spark jobs.",
    "detection-speed": "Throughput of reading event logs.",
    "detection": "Precision and recall of the detection.",
    "detection-endings": "Ten hosts that end applications, twenty jobs with bugs of their own: who is blamed.",
    "detection-follow": "From events of 200 running applications to the verdict, and memory; MINUTES=1440: a day.",
    "recordings": "What the detection finds in recordings that others made; RECORDINGS names their folder.",
    "detection-quality": "Thousands of synthetic runs: kinds of faults found, and healthy hosts blamed.",
}
"""Groups that take long, or need a build or a big download; they run only if named."""
