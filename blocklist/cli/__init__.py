"""The command `blocklist`: the service's API for people. What takes long to load is loaded where it is used."""
