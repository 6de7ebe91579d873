"""The fields of one config, checked, with transformers' defaults for absent ones, and every fault collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from smelt_match.errors import BadInput, close_names
from smelt_match.spec.huggingface.common import ACTIVATIONS, HEADS, IGNORED, NEUTRAL, QUANTISED
from smelt_match.spec.huggingface.kinds import kind_of
from smelt_match.spec.huggingface.strict import shown

REQUIRED: Final = object()
Neutral = Mapping[str, tuple[tuple[Any, ...], str]]


@dataclass(frozen=True)
class Architecture:
    """What is known of one ``model_type``.

    Attributes:
        build: From checked fields to those of a `ModelSpec`.
        defaults: Every field that bears on a budget, with the value that transformers gives it when it is absent;
            REQUIRED where a file without it is refused.
        ignored: Further fields that no budget depends on, with the reason where one is worth showing.
        neutral: Fields that may hold these values only, with the reason.
        aliases: Second names of fields; where a file has both, they must agree.
        nested: Fields that are mappings; theirs are named ``outer.inner``.
        within: The field of a multimodal config that holds the text model's config.
    """

    build: Callable[[Fields], dict[str, Any]]
    defaults: Mapping[str, Any]
    ignored: Mapping[str, str] = field(default_factory=dict)
    neutral: Neutral = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    within: tuple[str, str] | None = None


class Fields:
    """Checked access to one config: ``fields["hidden_size"]``.

    Attributes:
        used: Fields of the file that bear on a budget, in its order.
        ignored: Fields of the file that do not, with a reason in brackets where there is one.
        defaulted: Absent fields with the values that transformers gives them.
        notes: Sentences that belong to the spec.
        faults: What is wrong, a line each.
    """

    def __init__(self, where: str, document: Mapping[str, Any], architecture: Architecture, prefix: str = "") -> None:
        self.where, self.prefix = where, prefix
        self.used: list[str] = []
        self.ignored: list[str] = []
        self.notes: list[str] = []
        self.faults: list[str] = []
        self.hint = ""
        self.values: dict[str, Any] = {}
        flat = self._flat(document, architecture.nested)
        for key, value in flat.items():
            self._take(key, value, architecture, flat)
        self.defaulted: list[str] = []
        for key, value in architecture.defaults.items():
            if key in self.values:
                continue
            if value is REQUIRED:
                others = [alias for alias, name in architecture.aliases.items() if name == key]
                self.fault(key, f"required field is missing{f' (or {others[0]})' if others else ''}")
            elif value is not None:
                self.defaulted.append(f"{prefix}{key} {shown(value)}")
            self.values[key] = None if value is REQUIRED else value

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def fault(self, key: str, text: str) -> None:
        """Report a fault of a field."""
        self.faults.append(f"{self.where}: {self.prefix}{_short(key)}: {text}")

    def check(self) -> None:
        """Raise `BadInput` with every fault so far."""
        if self.faults:
            raise BadInput("\n".join(self.faults[:30]), self.hint)

    def _flat(self, document: Mapping[str, Any], nested: tuple[str, ...]) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in document.items():
            if key not in nested:
                flat[key] = value
            elif isinstance(value, dict):
                flat.update({f"{key}.{name}": item for name, item in value.items()})
            elif value is not None:
                self.fault(key, f"a mapping is wanted, found {shown(value)}")
        return flat

    def _take(self, key: str, value: Any, architecture: Architecture, flat: Mapping[str, Any]) -> None:
        own = key.rpartition(".")[2]
        neutral = architecture.neutral.get(key) or NEUTRAL.get(own)
        target = architecture.aliases.get(key)
        if target is not None and target not in flat:
            self._value(target, value, architecture, key)
        elif target is not None:
            self._agree(key, value, target, flat[target])
        elif key == "model_type" or (architecture.within and key == architecture.within[0]):
            self.used.append(self.prefix + key)
        elif own == "architectures":
            self._architectures(key, value)
        elif neutral is not None:
            self._neutral(key, value, neutral)
        elif key in architecture.defaults:
            self._value(key, value, architecture)
        elif key == "tie_word_embeddings" and architecture.within:
            self.used.append(key)
        elif own in ("hidden_act", "hidden_activation") and value is not None and value not in sorted(ACTIVATIONS):
            self.fault(key, f"the name of an activation is wanted, found {shown(value)}")
        elif key in architecture.ignored or own in IGNORED:
            reason = architecture.ignored.get(key, "")
            self.ignored.append(self.prefix + key + (f" ({reason})" if reason else ""))
        else:
            self.fault(key, "unknown field: it may bear on a budget, so it is not ignored")
            self.hint = self.hint or close_names(_short(key), architecture.defaults)

    def _value(self, key: str, value: Any, architecture: Architecture, alias: str = "") -> None:
        kind = kind_of(key)
        null = kind.null or architecture.defaults[key] is None  # null is what absence is
        if null if value is None else kind.holds(value):
            self.used.append(self.prefix + (alias or key))
            self.values[key] = value
        else:
            self.fault(alias or key, f"{kind.words} is wanted, found {shown(value)}")
            self.values[key] = None

    def _agree(self, alias: str, value: Any, key: str, other: Any) -> None:
        if type(value) is type(other) and value == other:
            self.used.append(self.prefix + alias)
        else:
            self.fault(alias, f"{shown(value)}, but {key} is {shown(other)}")

    def _neutral(self, key: str, value: Any, neutral: tuple[tuple[Any, ...], str]) -> None:
        allowed, reason = neutral
        if any(type(value) is type(one) and value == one for one in allowed):
            self.used.append(self.prefix + key)
            self.values[key] = value
            return
        self.fault(key, f"{shown(value)}: {reason}")
        if key in QUANTISED:
            self.hint = f"delete {key} from a copy of the file to count the model with unquantised weights"

    def _architectures(self, key: str, value: Any) -> None:
        names = value if isinstance(value, list) else [value]
        if value is None or all(isinstance(name, str) and name.endswith(HEADS) for name in names):
            self.used.append(self.prefix + key)
        else:
            self.fault(key, "only causal language models can be counted, found " + str(value)[:80])


def _short(key: str) -> str:
    text = key.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 80 else text[:77] + "…"
