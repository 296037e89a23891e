"""The command `blocklist`: the service's API for people. Slow imports are made where they are needed."""
