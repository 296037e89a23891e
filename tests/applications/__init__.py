"""Unchanged applications of every kind on a real cluster: they obey the list by configuration alone."""
