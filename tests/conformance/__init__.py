"""FLIP-224's and Flink's notification behaviour as data, run in three ways: in process, over push and over watch."""
