"""Print the paper's Appendix A beside our counts, as the README shows it.

python benchmarks/paper.py
"""

from __future__ import annotations

from smelt_match.export.expected import compare
from smelt_match.spec.family import shipped
from smelt_match.spec.model import ModelSpec

FIGURES = {
    "params_active": ("active", 1e9, 4),
    "params_total": ("total", 1e9, 3),
    "sparsity": ("S %", 1e-2, 2),
    "flops_ratio": ("FLOPs ratio", 1, 4),
    "kv_ratio": ("KV ratio", 1, 4),
}


def table() -> str:
    """A Markdown table: each cell is the printed figure, then ours with one more digit."""
    lines = ["| model | " + " | ".join(name for name, _, _ in FIGURES.values()) + " |", "|:--" * 6 + "|"]
    agree = checked = 0
    for name, entry in shipped().items():
        if entry.family != "smelt" or not isinstance(entry.spec, ModelSpec):
            continue
        found = {row.name: row for row in compare(entry.spec)}
        cells = []
        for figure, (_, unit, digits) in FIGURES.items():
            row = found.get(figure)
            if row is None or row.counted is None:
                cells.append("")
                continue
            checked += 1
            agree += row.agrees is True
            printed = row.printed.partition("e")[0]
            cells.append(f"{printed} · {float(row.counted) / unit:.{digits}f}" + ("" if row.agrees else " ✗"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{agree} of {checked} printed figures agree to their last digit.\n"


if __name__ == "__main__":
    print(table(), end="")
