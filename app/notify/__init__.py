"""Telling others: everything here reads the change log from a cursor."""
