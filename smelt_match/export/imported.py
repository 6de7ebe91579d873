"""What became of the fields of an imported config, in words and as JSON."""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.reader import Imported


def imported_json(imported: Imported) -> dict[str, Any]:
    """The document part of an imported config."""
    return {
        "model_type": imported.architecture,
        "source": imported.spec.source,
        "notes": imported.spec.notes,
        "fields_used": list(imported.used),
        "fields_by_default": list(imported.defaulted),
        "fields_ignored": list(imported.ignored),
        "function_left_out": list(imported.left_out),
    }


def imported_lines(imported: Imported) -> list[str]:
    """Which fields were used, which were left to transformers' defaults, which were ignored."""
    lines = [
        f"read from {imported.spec.source} (model_type {imported.architecture})",
        f"fields used: {', '.join(imported.used)}; ignored: {', '.join(imported.ignored) or 'none'}",
    ]
    if imported.defaulted:
        lines.append(f"absent, so transformers' defaults: {', '.join(imported.defaulted)}")
    if imported.left_out:
        lines.append(f"of its function, no count depends on this, and no spec says it: {'; '.join(imported.left_out)}")
    if imported.spec.notes:
        lines.append(f"note: {imported.spec.notes}")
    return lines
