"""Other systems that post to the service in their own format."""
