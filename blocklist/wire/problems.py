"""The types of problems (RFC 9457), by which the client tells errors with one status apart."""

from __future__ import annotations

from typing import Final

LIMIT_PROBLEM: Final = "urn:blocklist:problem:limit"
"""The problem type of a 409 caused by a limit. Unlike a conflict, it has no existing block to merge with."""

AMBIGUOUS_PROBLEM: Final = "urn:blocklist:problem:ambiguous-node"
"""The problem type of a 409 for a name that means several blocked nodes."""

UNKNOWN_NODE_PROBLEM: Final = "urn:blocklist:problem:unknown-node"
"""The problem type of a 409 for a node that no listener knows, if `strict` was given."""

DISMISSED_PROBLEM: Final = "urn:blocklist:problem:dismissed"
"""The problem type of a 409 for a claim of an owner that was dismissed after what the claim rests on was observed."""

NO_PATH_PROBLEM: Final = "urn:blocklist:problem:no-such-path"
"""The problem type of a 404 for a path that the service does not have. Any other 404 is about a node, for example."""
