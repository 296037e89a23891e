"""`python -m app`: see app.cli."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    # Nothing of what is loaded is ever garbage: to look for it takes a sixth of the start. Who serves enables it again.
    gc.disable()
    # structlog would load it for tracebacks in colours, which no log of ours has: 4 MB, and a twelfth of the start.
    sys.modules["rich"] = None  # type: ignore[assignment]
    from app.cli import main

    sys.exit(main())
