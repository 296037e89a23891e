"""The latest claims on a node that rest on evidence: of event logs, and of running applications. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.model.changes import Change
from blocklist.model.claims import DETECTION_OWNER, Claim, claim_of
from blocklist.model.evidence import EVIDENCE_OWNER

_OWNERS: Final = (DETECTION_OWNER, EVIDENCE_OWNER)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceClaim:
    """The evidence as its owner claimed it last: `at` (Unix ms; None if not known).

    `in_force` is whether the claim holds; `end` is when it ends, or would have ended.
    """

    owner: str
    cause: str
    at: int | None
    end: int
    in_force: bool


def latest_evidence_claims(changes: Sequence[Change], claims: Iterable[Claim]) -> list[EvidenceClaim]:
    """The latest claim of each owner. `changes`: of the node, the newest first; `claims`: those in force."""
    live = list(claims)
    return [found for owner in _OWNERS if (found := _latest(owner, changes, claim_of(live, owner))) is not None]


def _latest(owner: str, changes: Sequence[Change], live: Claim | None) -> EvidenceClaim | None:
    past = [(change.at, claim) for change, claim in _claims_of(owner, changes)]
    claim = live or (past[0][1] if past else None)
    if claim is None:
        return None
    same = [at for at, other in past if other.block.cause == claim.block.cause and other.block.end == claim.block.end]
    return EvidenceClaim(
        owner=owner,
        cause=claim.block.cause,
        at=min(same, default=None),
        end=claim.block.end,
        in_force=live is not None,
    )


def _claims_of(owner: str, changes: Sequence[Change]) -> Iterator[tuple[Change, Claim]]:
    for change in changes:
        if (claim := claim_of(change.claims_after, owner)) is not None:
            yield change, claim
