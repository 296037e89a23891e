"""For each schema a file with rows that the service wrote then."""
