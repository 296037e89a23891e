"""ResourceManager listeners that keep a cluster manager in line with the list: `python -m blocklist.managers`."""
