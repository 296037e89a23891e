"""What a client can follow: the change feed, event streams, exports, and the quota of open streams."""
