"""YAML that knows where in the file each of its values stands."""

from dataclasses import dataclass
from typing import Any

import yaml

MOST_CHARACTERS = 1_000_000
MOST_DIGITS = 64
"""Of a number: YAML 1.1 reads 1:2:3 as one in base 60, which takes ages where it is long."""
MOST_VALUES = 100_000
"""After aliases are expanded: a few of them, nested, stand for billions."""

Path = tuple[str | int, ...]
"""Keys and indices from the top."""


@dataclass(frozen=True, slots=True)
class Place:
    """Counted from 1."""

    line: int
    column: int


_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class MarkedYamlError(Exception):
    """What is wrong with the text as YAML, and where."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


class MarkedYaml:
    """One document: its plain data, and the place of every part of it.

    Raises MarkedYamlError for bad syntax, a key that is given twice or is no text, `NAME=VALUE`
    without a value in a flow mapping (what a comma cut off a text such as emulated:a=1,b=2), and
    for aliases that refer to themselves or multiply without end.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise MarkedYamlError(
                Place(1, 1), f"the file is longer than {MOST_CHARACTERS} characters"
            )
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            column = error.position - text.rfind("\n", 0, error.position)
            raise MarkedYamlError(
                Place(line, column), f"a character that is not allowed, {chr(error.character)!r}"
            ) from error
        try:
            root = loader.get_single_node()
            if root is None:
                raise MarkedYamlError(Place(1, 1), "the file is empty")
            self._root: yaml.Node = root
            _count(self._root, {}, set())
            self.data: Any = _value(loader, self._root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise MarkedYamlError(_place(mark) if mark else Place(1, 1), _told(error)) from error
        except RecursionError as error:
            raise MarkedYamlError(Place(1, 1), "the file is nested too deeply") from error
        except yaml.YAMLError as error:
            raise MarkedYamlError(Place(1, 1), str(error)) from error
        finally:
            loader.dispose()

    def place(self, path: Path) -> Place:
        """Where the value at `path` stands; of one that is not there, the nearest above it."""
        return _place(self._node(path)[1].start_mark)

    def key_place(self, path: Path) -> Place:
        """Where the key of the value at `path` stands; of a list's entry, the entry itself."""
        key, node = self._node(path)
        return _place((key or node).start_mark)

    def _node(self, path: Path) -> tuple[yaml.Node | None, yaml.Node]:
        key, node = None, self._root
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                if step >= len(node.value):
                    break
                key, node = None, node.value[step]
            elif isinstance(node, yaml.MappingNode):
                found = [pair for pair in _pairs(node) if pair[0].value == str(step)]
                if not found:
                    break
                key, node = found[-1]
            else:
                break
        return key, node


def _place(mark: yaml.Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _told(error: yaml.MarkedYAMLError) -> str:
    return " ".join(filter(None, (error.problem, error.context and f"({error.context})")))


def _count(node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """Values in `node`, those behind aliases each time that they are used."""
    if id(node) in above:
        raise MarkedYamlError(_place(node.start_mark), "this anchor's value refers to itself")
    if id(node) not in known:
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_count(part, known, above | {id(node)}) for part in parts)
    if known[id(node)] > MOST_VALUES:
        raise MarkedYamlError(_place(node.start_mark), f"this stands for over {MOST_VALUES} values")
    return known[id(node)]


def _value(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, entry) for entry in node.value]
    if not isinstance(node, yaml.MappingNode):
        if node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
            raise MarkedYamlError(
                _place(node.start_mark), f"a number of {len(node.value)} characters"
            )
        try:
            return loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError, AttributeError) as error:
            # a date that is none, for example, or a tag that the value does not fit
            raise MarkedYamlError(
                _place(node.start_mark), f"{node.value[:40]!r} is no {node.tag}: {error}"
            ) from error
    seen: dict[str, Place] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise MarkedYamlError(_place(key.start_mark), "a key must be text")
        empty = value.start_mark.index == value.end_mark.index
        if node.flow_style and empty and "=" in key.value:
            text = f"{key.value!r} has no value: inside {{}} a comma ends a text; quote all of it"
            raise MarkedYamlError(_place(key.start_mark), text)
        if key.value in seen:
            first = seen[key.value].line
            text = f"{key.value!r} is given twice; the first one is in line {first}"
            raise MarkedYamlError(_place(key.start_mark), text)
        seen[key.value] = _place(key.start_mark)
    return {key.value: _value(loader, value) for key, value in _pairs(node)}


def _pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """Key and value nodes; those merged in by `<<` first, so that the mapping's own win."""
    merged, own = [], []
    for key, value in node.value:
        if key.tag != "tag:yaml.org,2002:merge":
            own.append((key, value))
            continue
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                raise MarkedYamlError(_place(source.start_mark), "'<<' merges mappings only")
            merged += _pairs(source)
    return merged + own
