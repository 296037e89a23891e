"""The column of claims: null for what the other columns say."""

from __future__ import annotations

from dataclasses import replace

from app.store.tables import dump_block_claims, load_claims, with_canary
from blocklist.model.claims import Claim, author_claim
from blocklist.model.node import BlockAction, BlockedNode

NODE = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=1, end=100, cause="disk")


def test_the_only_claim_of_the_author_takes_no_space() -> None:
    for author in ("anna", None):
        claims = author_claim(author, NODE)
        assert dump_block_claims(claims, NODE, author) is None
        assert load_claims(None, NODE, author) == claims


def test_all_other_claims_are_written() -> None:
    own = Claim(owner="anna", author="anna", block=NODE)
    canary = replace(NODE, canary=True)
    for claims, node, author in (
        ((own, replace(own, owner="bob")), NODE, "anna"),
        ((own,), NODE, "bob"),
        ((replace(own, owner="kernel"),), NODE, "anna"),
        ((replace(own, block=canary),), canary, "anna"),
    ):
        text = dump_block_claims(claims, node, author)
        assert text is not None
        assert load_claims(text, NODE, author) == claims
        assert with_canary(NODE, claims) == node
