"""Who must hear what, in how many calls: FLIP-224's and Flink's behaviours as data, run against three ways to be told.

The rules in process, pushes of a running service, and its watch.
"""
