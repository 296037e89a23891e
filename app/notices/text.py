"""The text of a notice. Pure."""

from __future__ import annotations

from typing import Final

from app.notices.grouping import LeftOut, Notice, NoticeKind, Subject
from blocklist.model.time import to_utc

MAX_LENGTH: Final = 300
"""Maximum length of a cause or reason in a notice."""
_TITLES: Final = {
    NoticeKind.BLOCKED: "blocked",
    NoticeKind.EVACUATED: "evacuated: nothing runs there any more",
    NoticeKind.FREED: "free again",
    NoticeKind.REFUSED: "blocked, but a listener refuses that",
    NoticeKind.DRIFT: "not as the list says",
}
_CAUSE: Final = {NoticeKind.DRIFT: "Difference"}
_BY: Final = {NoticeKind.REFUSED: "Listener", NoticeKind.DRIFT: "Listener"}


def title(notice: Notice) -> str:
    """One line: how many nodes, and what happened to them."""
    if notice.subject is None:
        return "blocklist: notices were left out"
    what = f" ({notice.subject.what})" if notice.subject.what else ""
    return f"blocklist: {_subject_nodes(notice)} {_TITLES[notice.subject.kind]}{what}"


def body(notice: Notice) -> str:
    """The nodes, the cause, the author and the time, a line each; and what was left out before."""
    lines = [] if notice.subject is None else _lines(notice, notice.subject)
    if notice.left_out:
        lines.append(_left_out(notice.left_out))
    return "\n".join(lines)


def _lines(notice: Notice, subject: Subject) -> list[str]:
    more = notice.events - len(notice.nodes)
    lines = [f"Nodes: {', '.join(notice.nodes)}" + (f" and {more:,} more" if more > 0 else "")]
    if subject.cause:
        lines.append(f"{_CAUSE.get(subject.kind, 'Cause')}: {_cut(subject.cause)}")
    lines += [f"Reason: {_cut(reason)}" for reason in notice.reasons]
    if subject.by:
        lines.append(f"{_BY.get(subject.kind, 'By')}: {_cut(subject.by)}")
    if (at := to_utc(notice.at)) is not None:
        lines.append(f"At: {at:%Y-%m-%d %H:%M:%S} UTC")
    return lines


def _subject_nodes(notice: Notice) -> str:
    return notice.nodes[0] if notice.events == 1 else f"{notice.events:,} nodes"


def _left_out(left_out: LeftOut) -> str:
    notices = "1 notice" if left_out.notices == 1 else f"{left_out.notices:,} notices"
    nodes = "1 node" if left_out.events == 1 else f"{left_out.events:,} nodes"
    return f"Left out before this notice: {notices} about {nodes}. See the history."


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
