"""YAML 1.2 read into plain values that remember their line, with every fault of a file reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from io import StringIO
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from smelt_match.errors import BadInput, close_names

MAX_NODES = 200_000
MAX_DEPTH = 60
TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")}
Key = tuple[str | int, ...]
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """A YAML document: plain values, the 1-based line of each key path, and faults for `validate` to report."""

    value: Any
    lines: dict[Key, int]
    where: str
    faults: tuple[str, ...] = ()

    def place(self, key: Key) -> str:
        """``file:line: key`` of the closest path that the file has."""
        for cut in range(len(key), -1, -1):
            line = self.lines.get(key[:cut])
            if line is not None:
                name = ".".join(str(part) for part in key)
                return f"{self.where}:{line}" + (f": {name}" if name else "")
        return self.where


def load(text: str, where: str) -> Document:
    """Parse one YAML document, refusing duplicate keys, custom tags, deep nesting and exploding aliases."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise BadInput(f"{where}{line}: not valid YAML: {error.problem or error.context}") from None
    except (YAMLError, RecursionError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{where}: not valid YAML: {first}") from None
    if root is None:
        raise BadInput(f"{where}: holds no YAML document")
    walker = _Walker(yaml.constructor.construct_object, where)
    value = walker.plain(root, ())
    if walker.faults and not isinstance(value, dict):
        raise BadInput("\n".join(walker.faults))
    return Document(value, walker.lines, where, tuple(walker.faults))


class _Walker:
    """Turns a node tree into plain values, and collects lines and faults on the way."""

    def __init__(self, scalar: Callable[[Any], Any], where: str) -> None:
        self.scalar, self.where = scalar, where
        self.lines: dict[Key, int] = {}
        self.faults: list[str] = []
        self.nodes = 0

    def plain(self, node: Any, key: Key) -> Any:
        from ruamel.yaml.nodes import MappingNode, ScalarNode

        self.nodes += 1
        line = node.start_mark.line + 1
        if self.nodes > MAX_NODES or len(key) > MAX_DEPTH:
            raise BadInput(f"{self.where}:{line}: nested too deep, or expands to too many values")
        self.lines[key] = line
        tag = str(node.tag)
        if tag not in TAGS:
            self.faults.append(f"{self.where}:{line}: the tag {tag} is not allowed")
            return None
        if isinstance(node, ScalarNode):
            try:
                return self.scalar(node)
            except Exception as error:  # the library raises many kinds for bad scalars such as dates
                reason = re.split(r"[;\n]", str(error))[0] or type(error).__name__
                self.faults.append(f"{self.where}:{line}: cannot read {node.value[:40]!r}: {reason}")
                return None
        if isinstance(node, MappingNode):
            return self.mapping(node, key)
        return [self.plain(item, (*key, index)) for index, item in enumerate(node.value)]

    def mapping(self, node: Any, key: Key) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            name = name_node.value
            if not isinstance(name, str):
                self.faults.append(f"{self.where}:{line}: a key must be a word")
                continue
            if name in result:
                first = self.lines[(*key, name)]
                self.faults.append(f"{self.where}:{line}: {name}: key given twice (first on line {first})")
                continue
            result[name] = self.plain(value_node, (*key, name))
            self.lines[(*key, name)] = line
        return result


def validate(kind: type[T], document: Document, key: Key = (), value: Any = None) -> T:
    """Validate ``value`` (default: the whole document) as ``kind``; `BadInput` lists every fault with its line."""
    subject = document.value if value is None else value
    if not isinstance(subject, dict):
        raise BadInput(f"{document.place(key)}: expected keys and values, found {describe(subject)}")
    try:
        valid = kind.model_validate(subject)
    except ValidationError as error:
        faults, hints = list(document.faults), []
        for fault in error.errors(include_url=False, include_context=False):
            path = (*key, *(part for part in fault["loc"] if isinstance(part, (str, int))))
            if fault["type"] == "value_error":
                faults += _each(document, path, _sentence(fault))
            else:
                faults.append(f"{document.place(path)}: {_sentence(fault)}")
            if fault["type"] == "extra_forbidden":
                hints.append(close_names(str(fault["loc"][-1]), _keys(kind, fault["loc"][:-1])))
        raise BadInput("\n".join(faults), hints[0] if hints else "") from None
    if document.faults:
        raise BadInput("\n".join(document.faults))
    return valid


def _each(document: Document, path: Key, text: str) -> list[str]:
    """The faults of a validator, a line each: at the key that a fault begins with, where the file has it."""
    faults = []
    for line in text.split("\n"):
        number = document.lines.get((*path, re.split(r"[ ,:]", line)[0]))
        if line.startswith(" "):  # the picture under a layout
            faults.append(line)
        elif number is None:
            faults.append(f"{document.place(path)}: {line}")
        else:
            owner = ".".join(str(part) for part in path)
            faults.append(f"{document.where}:{number}: " + (f"{owner}: " if owner else "") + line)
    return faults


def _keys(kind: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The keys that a mapping inside a model may have."""
    for part in path:
        field = kind.model_fields.get(part)
        kind = (None if field is None else _model_in(field.annotation)) or kind
    return list(kind.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation is, or holds: ``Loop | None``, ``list[Surface]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


def _sentence(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown key"
    if fault["type"] == "missing":
        return "required key is missing"
    if fault["type"] in ("dict_type", "model_type"):
        return f"expected keys and values, found {describe(fault['input'])}"
    if fault["type"] == "string_pattern_mismatch" and fault["loc"][-1] == "name":
        words = "expected a name of up to 100 letters, digits, '.', '_' and '-' that begins with a letter or digit"
        return f"{words}, found {describe(fault['input'])}"
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if fault["type"] == "value_error":
        return message
    return f"{message}, found {describe(fault['input'])}"


def describe(value: Any) -> str:
    """A value as a person would name it in an error, never longer than a line."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = value.isoformat() if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
