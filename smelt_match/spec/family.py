"""Names to specs: shipped families, patterns, a user's own YAML files, and Hugging Face configs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from smelt_match.errors import BadInput, close_names
from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.grammar import parse_layout
from smelt_match.spec.huggingface.reader import CONFIG, Imported, config_at, read_config
from smelt_match.spec.model import Head, IncompleteSystem, ModelSpec, PublishedRow
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import Document, load, validate


class FamilyFile(Record):
    """A file of several models: ``defaults`` are merged under each entry of ``models``."""

    family: str
    source: str = ""
    notes: str = ""
    grid: str | None = Field(None, description="the grid that `solve` uses for this family")
    defaults: dict[str, Any] = Field(default_factory=dict)
    models: list[dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A spec with the place it came from."""

    spec: Head
    family: str | None = None
    grid: str | None = None
    imported: Imported | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether `solve` may start from it: an unlooped model that can be counted."""
        return isinstance(self.spec, ModelSpec) and self.spec.visits.is_unlooped


def read_specs(path: Path) -> list[Entry]:
    """The specs of a file: a model, a family of them, or a Hugging Face config. `BadInput` lists every fault."""
    config = config_at(path)
    if config is not None:
        imported = read_config(*config)
        return [Entry(imported.spec, imported=imported)]
    document = load(read_text(path, "spec file"), str(path))
    if isinstance(document.value, dict) and "models" in document.value:
        return _family(document)
    return [Entry(_one(document, (), document.value))]


def _family(document: Document) -> list[Entry]:
    family = validate(FamilyFile, document)
    known = {*ModelSpec.model_fields, *PublishedRow.model_fields, *IncompleteSystem.model_fields}
    unknown = [name for name in family.defaults if name not in known]
    faults = [f"{document.place(('defaults', name))}: unknown key" for name in unknown]
    hint = close_names(unknown[0], known) if unknown else ""
    defaults = {name: value for name, value in family.defaults.items() if name in known}
    if not family.models:
        faults.append(f"{document.place(('models',))}: a family has at least one model")
    entries, seen = [], set()
    for index, model in enumerate(family.models):
        for name in defaults.keys() - model.keys():
            document.lines["models", index, name] = document.lines["defaults", name]
        try:
            spec = _one(document, ("models", index), _with_defaults(defaults, model))
            if spec.name in seen:
                place = document.place(("models", index, "name"))
                raise BadInput(f"{place}: {spec.name!r} names two models")
            seen.add(spec.name)
            entries.append(Entry(spec, family.family, family.grid))
        except BadInput as error:
            faults.append(error.message)
            hint = hint or error.hint
    if faults:
        raise BadInput("\n".join(faults), hint)
    return entries


def _with_defaults(defaults: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The defaults under a model's own keys; a row that cannot be counted takes just those it has a place for."""
    fields = _kind(model).model_fields
    return {name: value for name, value in defaults.items() if name in fields} | model


def _kind(value: Any) -> type[Head]:
    """What an entry is, by its status."""
    if not isinstance(value, dict) or "status" not in value:
        return ModelSpec
    return IncompleteSystem if value["status"] == "incomplete" else PublishedRow


def _one(document: Document, key: tuple[str | int, ...], value: Any) -> Head:
    return validate(_kind(value), document, key, value)


@cache
def shipped() -> dict[str, Entry]:
    """Every spec that comes with the package, by name."""
    entries: dict[str, Entry] = {}
    for path in [*data_files("specs"), *data_files("specs/systems")]:
        for entry in read_specs(path):
            if entry.spec.name in entries:
                raise BadInput(f"{path}: {entry.spec.name!r} is already the name of a shipped spec")
            entries[entry.spec.name] = entry
    return entries


def looks_like_path(text: str) -> bool:
    """Whether a spec argument is meant as a file rather than a name."""
    return "/" in text or "\\" in text or text.lower().endswith((".yaml", ".yml", ".json"))


def _is_there(text: str) -> bool:
    """Whether a file of that name, or a folder with a config, lies in the current folder."""
    path = Path(text[:255])
    try:
        return path.is_file() or (path / CONFIG).is_file()
    except (OSError, ValueError):  # no permission, or a NUL
        return False


def _is_folder(text: str) -> bool:
    try:
        return Path(text[:255]).is_dir()
    except (OSError, ValueError):  # no permission, or a NUL
        return False


def expand(text: str) -> list[Entry]:
    """What a spec argument stands for.

    A file gives its models; a folder gives its ``config.json``; a name gives that spec; a family name gives the
    family's baselines; a pattern (``200m_*``) gives every shipped spec it matches.
    """
    if looks_like_path(text) or (text not in shipped() and _is_there(text)):
        return _with_known_controls(read_specs(Path(text)), Path(text))
    entries = shipped()
    if text in entries:
        return [entries[text]]
    members = [entry for entry in entries.values() if entry.family == text and entry.is_baseline]
    if not members and any(sign in text for sign in "*?["):
        members = [entry for name, entry in entries.items() if fnmatchcase(name, text)]
    if not members and _is_folder(text):
        return read_specs(Path(text))  # which says what the folder lacks
    if not members:
        families = {entry.family for entry in entries.values() if entry.family}
        hint = close_names(text[:80], {*entries, *families})
        hub = "; any other model is named by the folder with its config.json"
        raise BadInput(f"unknown spec {text[:80]!r}", hint if hint.startswith("did you mean") else hint + hub)
    return members


def _with_known_controls(entries: list[Entry], path: Path) -> list[Entry]:
    """The entries of a user's file, whose controls must be shipped specs or the model itself."""
    unknown = {
        index: name
        for index, entry in enumerate(entries)
        if (name := getattr(entry.spec, "control", None)) not in (None, entry.spec.name) and name not in shipped()
    }
    if unknown:
        document = load(read_text(path, "spec file"), str(path))
        faults = []
        for index, name in unknown.items():
            keys = (("models", index, "control"), ("defaults", "control"))
            key = next((key for key in keys if key in document.lines), ("control",))
            faults.append(f"{document.place(key)}: {name!r} is not a shipped spec")
        raise BadInput("\n".join(faults), "name a shipped spec, or leave control out: then it is this model with E = k")
    return entries


def countable(entry: Entry) -> ModelSpec:
    """The model of an entry, or `BadInput` with the reason why it cannot be counted."""
    if isinstance(entry.spec, ModelSpec):
        return entry.spec
    assert isinstance(entry.spec, (PublishedRow, IncompleteSystem))
    shows = "what is printed" if isinstance(entry.spec, PublishedRow) else "what is known"
    raise BadInput(
        f"{entry.spec.name}: cannot be counted: {entry.spec.reason}",
        f"`smelt-match specs show {entry.spec.name}` shows {shows}",
    )


def published_match(baseline: ModelSpec, visits: tuple[int, ...]) -> Head | None:
    """The shipped row that was published as a match of a shipped baseline under these visits, if there is one.

    A model of the user's that merely has the name of a shipped one has no published row.
    """
    own = shipped().get(baseline.name)
    if own is None or not isinstance(own.spec, ModelSpec) or own.spec.config() != baseline.config():
        return None
    for entry in shipped().values():
        spec = entry.spec
        if spec.matches != baseline.name or isinstance(spec, IncompleteSystem):
            continue
        if isinstance(spec, PublishedRow):
            layout = parse_layout(spec.layout, spec.num_layers)
        else:
            assert isinstance(spec, ModelSpec)
            layout = spec.visits
        if layout.visits == visits:
            return spec
    return None
