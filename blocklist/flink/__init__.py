"""The bridge to Flink: a process beside the JobManager that makes a Flink cluster follow the list. See docs/flink.md.

`jvm` and `rpc` know Py4J and Flink's classes. All other modules work on the values of `state`; the rules in `marking`,
`effects`, `guards` and `state` are pure.
"""
