"""IP addresses and host names: trusted proxies, secure URLs, and the hosts that callbacks may go to."""
