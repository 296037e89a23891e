"""Finds the bad node in the event logs of many applications, and proposes to block it, with evidence."""
