"""Text of files and standard streams, whatever the editor that wrote it and the locale of the process.

Light to import: a program handles signals and reports its own faults with it before anything else is there.
"""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def decode_text(data: bytes) -> str:
    """The text without its byte order mark: UTF-8, or UTF-16 if the mark says so. Raises UnicodeDecodeError."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError and UnicodeDecodeError."""
    return decode_text(path.read_bytes())


def read_stdin() -> str:
    """The text of standard input, which is UTF-8 whatever the locale. Raises UnicodeDecodeError."""
    return decode_text(sys.stdin.buffer.read())


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON for stdout, in one line or indented; in ASCII unless stdout is UTF-8."""
    import json  # noqa: PLC0415 - not for --version and --help

    is_utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "") == "utf8"
    return json.dumps(value, ensure_ascii=not is_utf8, indent=indent)


def escape_unprintable(text: str) -> str:
    r"""The text with control and invisible characters escaped as in Python: `\x1b` for an escape."""
    if text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def prepare_streams() -> None:
    r"""Make standard streams usable: a character that their encoding lacks is written as an escape, such as `\u20ac`.

    A stream that was closed (`>&-`) is opened, so that no connection takes its descriptor: stdin is then empty, stderr
    is discarded, and writing to stdout fails, as it does for any program.
    """
    if sys.stdin is None:
        sys.stdin = _open(0, os.O_RDONLY, "r")
    if sys.stdout is None:
        sys.stdout = _open(1, os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _open(2, os.O_WRONLY, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def exit_on_signals() -> None:
    """End the process at SIGTERM and SIGINT, until the program handles them itself.

    The exit code is 128 plus the signal's number. Without a handler, process 1 of a container ignores signals, and
    imports may take a second.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os._exit(128 + received))


def report_fault(error: Exception, program: str) -> None:
    """Write a sentence to stderr for an error that nothing has foreseen, with its place in the code."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
    what = f"{type(error).__name__}: {str(error).encode('unicode_escape').decode()[:300]}{where}"
    # If stderr cannot be written either, the exit code is all that is left.
    with suppress(Exception):
        sys.stderr.write(f"Error: {program} has failed by a fault of its own. Please report it: {what}\n")
        sys.stderr.flush()


def _open(descriptor: int, flags: int, mode: str) -> Any:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return open(descriptor, mode, encoding="utf-8", closefd=False)
