"""The page: what people on call see of the list, and change through the same rules as the API."""
