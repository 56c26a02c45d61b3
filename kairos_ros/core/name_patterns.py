"""Patterns of robot names, such as `left_*`: `*`, `?` and `[abc]` as in file names.

Whether two sets of patterns overlap is decided exactly, over all names that a robot can have: two
servers that share a robot in future are found today.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from string import ascii_letters, digits

from kairos_ros.core.errors import ConfigError

ALPHABET = frozenset(ascii_letters + digits + "_")
"""Of the names of ROS."""
_TOKEN = re.compile(r"\*|\?|\[!?\]?[^\]]*\]|.")


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the patterns is `name`'s; no patterns at all are everybody's."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def overlap(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether there can be a robot whose name matches both; no patterns match every name."""
    return any(_meet(_tokens(a), _tokens(b)) for a in ours or ["*"] for b in theirs or ["*"])


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises ConfigError for a pattern that no name of a robot can match."""
    for pattern in patterns:
        if not pattern or any(token == frozenset() for token in _tokens(pattern)):
            raise ConfigError(
                f"robots: pattern {pattern!r} matches no robot; names have letters, digits and _, "
                "and a pattern also *, ? and [abc]"
            )


def _tokens(pattern: str) -> list[frozenset[str] | None]:
    """The characters that each place of the pattern allows; None for `*`."""
    return [_allowed(token) for token in _TOKEN.findall(pattern)]


@lru_cache(maxsize=1024)
def _allowed(token: str) -> frozenset[str] | None:
    return None if token == "*" else frozenset(c for c in ALPHABET if fnmatchcase(c, token))


def _meet(one: list[frozenset[str] | None], other: list[frozenset[str] | None]) -> bool:
    """Whether some text matches both: walks through both at once, a character at a time."""
    reached, todo = set(), [(0, 0)]
    while todo:
        at = i, j = todo.pop()
        if at in reached:
            continue
        reached.add(at)
        a = one[i] if i < len(one) else frozenset()
        b = other[j] if j < len(other) else frozenset()
        if a is None:
            todo.append((i + 1, j))
        if b is None:
            todo.append((i, j + 1))
        if (ALPHABET if a is None else a) & (ALPHABET if b is None else b):
            todo.append((i + (a is not None), j + (b is not None)))
    return (len(one), len(other)) in reached
