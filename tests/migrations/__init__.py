"""Databases as earlier versions of the service left them: for each schema a file with rows that it wrote."""
