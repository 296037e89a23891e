"""Addresses, host names and URLs: trusted proxies, accepted hosts, where callbacks may go, links, notices."""
