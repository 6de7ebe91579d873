"""From a path to a spec: which file is meant, which architecture, which fields were used, which ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from smelt_match.errors import BadInput, close_names
from smelt_match.files import read_text
from smelt_match.spec.huggingface.common import HEADS
from smelt_match.spec.huggingface.dense import DENSE
from smelt_match.spec.huggingface.fields import Architecture, Fields
from smelt_match.spec.huggingface.function import left_out
from smelt_match.spec.huggingface.inkling import INKLING
from smelt_match.spec.huggingface.latent import LATENT
from smelt_match.spec.huggingface.looped import LOOPED
from smelt_match.spec.huggingface.moe import MOE
from smelt_match.spec.huggingface.own import OWN
from smelt_match.spec.huggingface.strict import load_json, shown
from smelt_match.spec.model import ModelSpec

CONFIG = "config.json"
ARCHITECTURES: dict[str, Architecture] = {**DENSE, **MOE, **LATENT, **LOOPED, **INKLING, **OWN}
_MARKS = {"model_type", "architectures", "transformers_version", "auto_map"}
_SPEC_MARKS = {"name", "models"}  # a spec may be written in JSON, which is YAML
_HASH = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Imported:
    """A spec read from a config, with what became of each of its fields.

    Attributes:
        architecture: The ``model_type``.
        used: Fields that a budget depends on, in the file's order.
        defaulted: Fields that are absent, with the values that transformers gives them.
        ignored: Fields that no budget depends on, some with a reason.
        left_out: What the config's model computes that the spec cannot say.
    """

    spec: ModelSpec
    architecture: str
    used: tuple[str, ...]
    defaulted: tuple[str, ...]
    ignored: tuple[str, ...]
    left_out: tuple[str, ...]


def config_at(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The Hugging Face config that a path names, or None where it names something else.

    Raises:
        BadInput: A folder without a config, or a JSON file that cannot be read.
    """
    try:
        folder, found = path.is_dir(), (path / CONFIG).exists()
    except (OSError, ValueError):  # reading it as a file will say what is wrong
        return None
    if folder:
        if not found:
            raise BadInput(f"{path}: this folder has no {CONFIG}", "name a YAML spec, or a folder with a config.json")
        path = path / CONFIG
    if path.suffix.lower() != ".json":
        return None
    document = load_json(read_text(path, "config"), str(path))
    if path.name == CONFIG or _MARKS & document.keys() or not _SPEC_MARKS & document.keys():
        return path, document
    return None


def read_config(path: Path, document: Mapping[str, Any]) -> Imported:
    """Read a config as a spec; `BadInput` lists every fault with its key."""
    where = str(path)
    kind = document.get("model_type")
    custom = ", and its own code (auto_map) cannot be counted" if "auto_map" in document else ""
    if not isinstance(kind, str):
        what = f"a name is wanted, found {shown(kind)}" if "model_type" in document else "required field is missing"
        raise BadInput(f"{where}: model_type: {what}{custom}", _known(""))
    architecture = ARCHITECTURES.get(kind)
    if architecture is None:
        raise BadInput(f"{where}: model_type: {shown(kind)} is not known{custom}", _known(kind))
    outer = Fields(where, document, architecture)
    _check_class(outer, document.get("architectures"), kind)
    fields, text = outer, document
    if architecture.within is not None:
        text = document.get(architecture.within[0]) or {}
        fields = _inner(outer, document, *architecture.within)
        architecture = ARCHITECTURES[architecture.within[1]]
    fields.check()
    built = architecture.build(fields)
    fields.check()
    spec = _spec(where, fields, built, _name(path, document), f"{path.name}, {_title(document, kind)}")
    wrapped = outer is not fields
    return Imported(
        spec, kind,
        tuple((outer.used if wrapped else []) + fields.used), tuple(fields.defaulted),
        tuple((outer.ignored if wrapped else []) + fields.ignored), left_out(kind, text),
    )  # fmt: skip


def _check_class(fields: Fields, names: Any, kind: str) -> None:
    """Refuse a class that is another known architecture's: nobody could say which of the two is meant."""
    others = {_stem(other): other for other in ARCHITECTURES if _stem(other) != _stem(kind)}
    for name in names if isinstance(names, list) else [names]:
        head = next((head for head in HEADS if isinstance(name, str) and name.endswith(head)), "")
        other = others.get(_stem(name.removesuffix(head))) if head else None
        if other is not None:
            fields.fault("architectures", f"{shown(name)} is of the type {other!r}, but model_type is {shown(kind)}")


def _stem(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("text")


def _inner(outer: Fields, document: Mapping[str, Any], key: str, kind: str) -> Fields:
    """The fields of the text model inside a multimodal config; faults of both are reported together."""
    text = document.get(key)
    prefix = f"{key}."
    if not isinstance(text, dict):
        outer.fault(key, f"a mapping is wanted, found {shown(text)}")
        raise BadInput("\n".join(outer.faults), outer.hint)
    inner = Fields(outer.where, text, ARCHITECTURES[kind], prefix)
    if text.get("model_type", kind) != kind:
        inner.fault("model_type", f"{kind!r} is wanted, found {shown(text['model_type'])}")
    tied = "tie_word_embeddings"
    if tied in document and tied in inner.values and document[tied] != inner.values[tied]:
        outer.fault(tied, f"{shown(document[tied])}, but the text model says {shown(inner.values[tied])}")
    inner.faults = outer.faults + inner.faults
    inner.hint = outer.hint or inner.hint
    return inner


def _spec(where: str, fields: Fields, built: dict[str, Any], name: str, source: str) -> ModelSpec:
    given = {key: value for key, value in built.items() if value is not None}
    given |= {"name": name, "source": source}
    if fields.notes:
        given["notes"] = "; ".join(fields.notes)
    try:
        return ModelSpec.model_validate(given)
    except ValidationError as error:
        lines = []
        for fault in error.errors(include_url=False, include_context=False):
            place = ".".join(str(part) for part in fault["loc"])
            text = str(fault["msg"]).removeprefix("Value error, ")
            lines.append(f"{where}: {place}: {text}" if place else f"{where}: {text}")
        raise BadInput("\n".join(lines)) from None


def _known(kind: str) -> str:
    names = ", ".join(sorted(ARCHITECTURES))
    close = close_names(kind, ARCHITECTURES) if kind else ""
    return f"{close} known types: {names}" if close.startswith("did you mean") else f"known types: {names}"


def _title(document: Mapping[str, Any], kind: str) -> str:
    names = document.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else kind


def _name(path: Path, document: Mapping[str, Any]) -> str:
    """The file's own name, or for a ``config.json`` its folder's; a cache folder named by a hash is passed over."""
    stem = path.stem
    if path.name == CONFIG:
        stem = path.resolve().parent.name
        if not stem or _HASH.fullmatch(stem):
            stated = document.get("_name_or_path")
            stem = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:100]
    return name or "model"
