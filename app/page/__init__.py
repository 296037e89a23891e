"""The web page: shows the list and changes it through the same commands as the API."""
