"""Label selectors in kubectl's syntax: `rack=r12,pool!=gpu,zone in (a, b),!broken`. Pure.

Syntax, semantics and limits are those of Kubernetes' package k8s.io/apimachinery/pkg/labels, without its `>` and `<`,
which kubectl does not document. As there, `!=` and `notin` also select nodes that do not have the label.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, NamedTuple

from blocklist.model.errors import InvalidError

MAX_LENGTH: Final = 1024
"""Maximum length of a selector, in characters."""
MAX_REQUIREMENTS: Final = 32
"""Maximum number of requirements of a selector: each is compared with the labels of each node."""
MAX_NAME_LENGTH: Final = 63
"""Maximum length of a label's value, and of its key after the prefix, in characters."""
MAX_PREFIX_LENGTH: Final = 253
"""Maximum length of the prefix of a label's key, in characters."""
MAX_SUGGESTIONS: Final = 5
"""Maximum number of unknown keys for which a similar one is looked for: each takes a few milliseconds."""
MAX_COMPARED: Final = 200
"""Maximum number of known keys with each of which a key is compared. Listeners may report tens of thousands."""

_MAX_QUOTED: Final = 80
_TOKEN: Final = re.compile(r"==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+")
_SYMBOLS: Final = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">"})
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_DNS_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)
_NAME_RULE: Final = "must begin and end with a letter or digit, with letters, digits, '-', '_' and '.' between them"


_Test = tuple[str, frozenset[str | None] | frozenset[str], bool]
_NO_VALUE: Final[frozenset[str | None]] = frozenset({None})


class Operator(StrEnum):
    """How a requirement compares a label; `=`, `==` and `!=` are `in` and `notin` with one value."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    NOT_EXISTS = "!"


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One condition on the label `key`; `values` are those of `in` and `notin`."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def test(self) -> _Test:
        """The same as: is the value of the label, None without the label, among these values?"""
        match self.operator:
            case Operator.IN:
                return self.key, self.values, True
            case Operator.NOT_IN:
                return self.key, self.values, False
            case Operator.EXISTS:
                return self.key, _NO_VALUE, False
            case Operator.NOT_EXISTS:
                return self.key, _NO_VALUE, True

    def __str__(self) -> str:
        if self.operator is Operator.EXISTS:
            return self.key
        if self.operator is Operator.NOT_EXISTS:
            return f"!{self.key}"
        if len(self.values) == 1:
            return f"{self.key}{'=' if self.operator is Operator.IN else '!='}{next(iter(self.values))}"
        return f"{self.key} {self.operator} ({','.join(sorted(self.values))})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects what satisfies all requirements; without requirements, everything."""

    requirements: tuple[Requirement, ...] = ()
    _tests: tuple[_Test, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Prepared, as thousands of nodes are compared at once.
        object.__setattr__(self, "_tests", tuple(requirement.test() for requirement in self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy every requirement."""
        for key, values, expected in self._tests:  # noqa: SIM110 - all() takes twice the time
            if (labels.get(key) in values) is not expected:
                return False
        return True

    @property
    def keys(self) -> list[str]:
        """The keys of the labels that it compares, each once, in its order."""
        return list(dict.fromkeys(requirement.key for requirement in self.requirements))

    def __bool__(self) -> bool:
        """Whether there is any requirement."""
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


def parse_selector(text: str) -> Selector:
    """Parse a selector. Raises InvalidError with the position of the error, counted in characters from 1."""
    if len(text) > MAX_LENGTH:
        raise InvalidError(f"The selector has {len(text):,} characters; at most {MAX_LENGTH:,} are allowed.")
    return Selector(tuple(_Parser(text).requirements()))


def check_label_key(key: str) -> str:
    """Return the key of a label, `[prefix/]name`, if it is valid. Raises InvalidError."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > MAX_PREFIX_LENGTH or not _PREFIX.fullmatch(prefix)):
        raise InvalidError(
            f"The prefix of the label key {_quoted(key)} must be a DNS name in lower case of at most"
            f" {MAX_PREFIX_LENGTH} characters."
        )
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidError(f"The label key {_quoted(key)} has a name of more than {MAX_NAME_LENGTH} characters.")
    if not _NAME.fullmatch(name):
        raise InvalidError(f"The label key {_quoted(key)} {_NAME_RULE}.")
    return key


def check_label_value(value: str) -> str:
    """Return the value of a label if it is valid; it may be empty. Raises InvalidError."""
    if len(value) > MAX_NAME_LENGTH:
        raise InvalidError(f"The label value {_quoted(value)} has more than {MAX_NAME_LENGTH} characters.")
    if value and not _NAME.fullmatch(value):
        raise InvalidError(f"The label value {_quoted(value)} {_NAME_RULE}.")
    return value


def unknown_keys(selector: Selector, known: Collection[str]) -> dict[str, str | None]:
    """The keys in the selector that are not among the known ones, each with a similar known key, or None."""
    unknown = [key for key in selector.keys if key not in known]
    ordered = sorted(known) if unknown else []
    suggestions = [_similar_key(key, ordered) for key in unknown[:MAX_SUGGESTIONS]]
    return dict.fromkeys(unknown) | dict(zip(unknown, suggestions, strict=False))


def _similar_key(key: str, ordered: Sequence[str]) -> str | None:
    """The most similar of the sorted keys; of many, of those next to it."""
    if len(ordered) > MAX_COMPARED:
        place = bisect_left(ordered, key)
        ordered = ordered[max(0, place - MAX_COMPARED // 2) : place + MAX_COMPARED // 2]
    return next(iter(get_close_matches(key, ordered, n=1)), None)


class _Token(NamedTuple):
    """A symbol, a word, or the end (empty); `position` counts characters from 1."""

    text: str
    position: int

    @property
    def is_word(self) -> bool:
        return self.text != "" and self.text not in _SYMBOLS


class _Parser:
    """A recursive descent parser. `in` and `notin` are operators after a key, and words elsewhere."""

    def __init__(self, text: str) -> None:
        self._tokens = [_Token(found[0], found.start() + 1) for found in _TOKEN.finditer(text)]
        self._tokens.append(_Token("", len(text) + 1))
        self._next = 0

    def requirements(self) -> list[Requirement]:
        """Parse the whole text."""
        parsed: list[Requirement] = []
        if self._peek().text == "":
            return parsed
        while True:
            parsed.append(self._requirement())
            separator = self._take()
            if separator.text == "":
                return parsed
            if separator.text != ",":
                raise _unexpected(separator, "',' or the end")
            if len(parsed) == MAX_REQUIREMENTS:
                raise _error(separator, f"at most {MAX_REQUIREMENTS} requirements are allowed")

    def _requirement(self) -> Requirement:
        if self._peek().text == "!":
            self._take()
            return Requirement(key=self._key("the key of a label"), operator=Operator.NOT_EXISTS)
        key = self._key("the key of a label, or '!' and a key")
        if self._peek().text in {"", ","}:
            return Requirement(key=key, operator=Operator.EXISTS)
        operator = self._take()
        match operator.text:
            case "=" | "==":
                return Requirement(key=key, operator=Operator.IN, values=frozenset({self._one_value()}))
            case "!=":
                return Requirement(key=key, operator=Operator.NOT_IN, values=frozenset({self._one_value()}))
            case "in" | "notin":
                return Requirement(key=key, operator=Operator(operator.text), values=self._value_list())
        raise _unexpected(operator, "'=', '==', '!=', 'in', 'notin', ',' or the end")

    def _key(self, expected: str) -> str:
        return self._word(expected, check_label_key)

    def _one_value(self) -> str:
        """A word; nothing means the empty value."""
        if self._peek().text in {"", ","}:
            return ""
        return self._value("a value")

    def _value_list(self) -> frozenset[str]:
        """Values in parentheses; nothing before or after a comma means the empty value."""
        opening = self._take()
        if opening.text != "(":
            raise _unexpected(opening, "'('")
        values: set[str] = set()
        while True:
            values.add("" if self._peek().text in {",", ")"} else self._value("a value, ',' or ')'"))
            separator = self._take()
            if separator.text == ")":
                return frozenset(values)
            if separator.text != ",":
                raise _unexpected(separator, "',' or ')'")

    def _value(self, expected: str) -> str:
        return self._word(expected, check_label_value)

    def _word(self, expected: str, check: Callable[[str], str]) -> str:
        token = self._take()
        if not token.is_word:
            raise _unexpected(token, expected)
        return _checked(token, check)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        """The next token; the end is never passed."""
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token


def _checked(token: _Token, check: Callable[[str], str]) -> str:
    try:
        return check(token.text)
    except InvalidError as error:
        raise _error(token, error.detail[0].lower() + error.detail[1:].removesuffix(".")) from None


def _unexpected(token: _Token, expected: str) -> InvalidError:
    found = _quoted(token.text) if token.text else "the end"
    return _error(token, f"expected {expected}, found {found}")


def _error(token: _Token, message: str) -> InvalidError:
    return InvalidError(f"selector, character {token.position}: {message}.")


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")
