"""The client of the service: reads, writes, watches, and sessions of listeners."""

from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8224"
