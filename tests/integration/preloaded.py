"""What `python -m app` imports before it serves, in the same order. Imported by the fork server only."""

from __future__ import annotations

import gc
import sys

gc.disable()
sys.modules["rich"] = None  # type: ignore[assignment]

import encodings.idna  # noqa: E402, F401

import psycopg  # noqa: E402, F401
import uvicorn.lifespan.on  # noqa: E402
import uvicorn.loops.uvloop  # noqa: E402, F401

import app.cli  # noqa: E402
import app.server  # noqa: E402, F401

# A collection in a service would copy what all services share.
gc.freeze()
