"""Streams of changes: the change feed, event streams, exports, and the limit on open streams."""
