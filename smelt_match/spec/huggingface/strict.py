"""JSON read strictly: no duplicate keys, no NaN or infinity, no deep nesting, one object at the top."""

from __future__ import annotations

import json
import math
from typing import Any

from smelt_match.errors import BadInput
from smelt_match.spec.yaml import describe

MAX_DEPTH = 60
MAX_NODES = 200_000
MAX_DIGITS = 400


def load_json(text: str, where: str) -> dict[str, Any]:
    """The object of a JSON text; `BadInput` lists every fault with its key."""
    faults: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                faults.append(f"{where}: {_shown(key)}: key given twice")
            result[key] = value
        return result

    def whole(digits: str) -> float:
        return int(digits) if len(digits) <= MAX_DIGITS else math.inf

    try:
        value = json.loads(text, object_pairs_hook=mapping, parse_int=whole)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise BadInput(f"{where}: not valid JSON: nested too deep") from None
    if not isinstance(value, dict):
        raise BadInput(f"{where}: a config is a JSON object, found {shown(value)}")
    faults += _numbers(value, where)
    if faults:
        raise BadInput("\n".join(faults[:20]))
    return value


def _numbers(value: Any, where: str) -> list[str]:
    """Faults of numbers that no budget can hold, each with its key; refuses deep and huge documents."""
    faults, nodes = [], 0
    pending: list[tuple[Any, tuple[str, ...]]] = [(value, ())]
    while pending:
        node, key = pending.pop()
        nodes += 1
        if len(key) > MAX_DEPTH or nodes > MAX_NODES:
            raise BadInput(f"{where}: nested too deep, or more than {MAX_NODES:,} values")
        if isinstance(node, dict):
            pending += [(item, (*key, _shown(name))) for name, item in node.items()]
        elif isinstance(node, list):
            pending += [(item, (*key, str(index))) for index, item in enumerate(node)]
        elif isinstance(node, float) and not math.isfinite(node):
            faults.append(f"{where}: {'.'.join(key)}: not a finite number")
    return faults


def _shown(key: str) -> str:
    text = key.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 60 else text[:57] + "…"


def shown(value: Any) -> str:
    """A value in a message, as JSON writes it: null, true, a mapping, a list, 3 or 'a text'."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return describe(value)
