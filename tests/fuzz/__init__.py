"""A differential fuzzer: the fast path, the ordinary route and h11 read the same bytes."""
