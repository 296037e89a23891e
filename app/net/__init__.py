"""Addresses and names of the network: trusted proxies, and the hosts that callbacks may go to."""
