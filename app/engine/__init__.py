"""The list in this process: the handler that commits changes, the view that answers reads, background tasks."""
