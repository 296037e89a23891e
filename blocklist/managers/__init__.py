"""ResourceManager listeners: each keeps a cluster manager in line with the list: `python -m blocklist.managers`."""
