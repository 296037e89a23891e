"""Finds slow and failing nodes in the event logs of many applications and proposes to block them, with evidence."""
