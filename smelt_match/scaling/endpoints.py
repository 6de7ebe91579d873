"""End points of training runs: which columns play which part, and what a table of them must be."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from smelt_match.errors import BadInput, close_names
from smelt_match.scaling.design import Array, Points
from smelt_match.scaling.table import COUNT, LOSS, NOT_NEGATIVE, SCORE, SHARE, Faults, Rule, Table, number

ROLES = ("run", "arch", "scale", "sparsity", "flops_per_token", "params", "params_once", "params_recurrent",
         "recurrences", "tokens", "loss", "weight", "length", "shots", "task", "score")  # fmt: skip
RULES: dict[str, Rule] = {
    "sparsity": SHARE, "flops_per_token": COUNT, "params": COUNT, "params_once": NOT_NEGATIVE,
    "params_recurrent": NOT_NEGATIVE, "recurrences": COUNT, "tokens": COUNT, "loss": LOSS, "weight": NOT_NEGATIVE,
    "length": COUNT, "shots": NOT_NEGATIVE, "score": SCORE,
}  # fmt: skip
NEEDED = {
    "surface": ("flops_per_token", "sparsity", "tokens", "loss"),
    "chinchilla": ("params", "tokens", "loss"),
    "phi": ("params_once", "params_recurrent", "recurrences", "tokens", "loss"),
    "isoflop": ("params", "tokens", "loss"),
    "calibration": ("loss",),
    "lengths": ("arch", "scale", "sparsity", "length", "loss"),
    "shots": ("arch", "task", "shots", "score"),
}
FITTED = ("surface", "chinchilla", "phi")
NEAR = {"arch": ("arch", "archs", "architecture"), "weight": ("weight", "weights")}  # optional roles under other names
WORDS = ("run", "arch", "scale", "task")
OPTIONAL = {"weight", "tokens", "flops_per_token"}
WHOLE = "all"
SAME_LEVEL = 0.005  # sparsities this close are one level
PAIRED_LEVEL = 0.03  # levels of two architectures this close make a pair
_CONDITION = re.compile(r"([^=<>!]+?)\s*(<=|>=|!=|=|<|>)\s*(.*)")


@dataclass(frozen=True)
class EndPoints:
    """End points of one or several architectures.

    Attributes:
        table: The rows.
        headers: The header of each role that the table has.
        arch: The architecture of each row.
        values: The numbers of each role that has them.
        warnings: What a reader should know.
    """

    table: Table
    headers: Mapping[str, str]
    arch: NDArray[np.str_]
    values: Mapping[str, Array]
    warnings: tuple[str, ...]

    @property
    def architectures(self) -> list[str]:
        """Names, in the order of the table."""
        return list(dict.fromkeys(self.arch.tolist()))

    def rows(self, arch: str) -> NDArray[np.int64]:
        """The rows of an architecture."""
        return np.flatnonzero(self.arch == arch)

    def points(self, arch: str, loss: Array | None = None) -> Points:
        """An architecture's points; `loss` replaces the loss by another column of the whole table.

        Under the form ``chinchilla`` F is 6·N, and S is 0.
        """
        rows, v = self.rows(arch), self.values
        F = v["flops_per_token"] if "flops_per_token" in v else 6 * v["params"]
        S = v.get("sparsity", np.zeros(len(F)))
        weight = v.get("weight", np.ones(len(F)))
        return Points(F[rows], S[rows], v["tokens"][rows], (v["loss"] if loss is None else loss)[rows], weight[rows])

    def cells(self, arch: str) -> tuple[list[tuple[str, int]], NDArray[np.int64]]:
        """The (scale, sparsity level) cells of an architecture, and the cell of each of its rows.

        Levels are ranks of the sparsities within a scale, since a looped model's S is not exactly its baseline's.
        """
        return self._cells(arch, self.scales())

    def _cells(self, arch: str, scale_of: list[str]) -> tuple[list[tuple[str, int]], NDArray[np.int64]]:
        rows = self.rows(arch)
        scales, S = np.array(scale_of)[rows], self.values["sparsity"][rows]
        level = np.zeros(len(rows), dtype=np.int64)
        for scale in dict.fromkeys(scales.tolist()):
            inside = np.flatnonzero(scales == scale)
            order = inside[np.argsort(S[inside], kind="stable")]
            level[order] = np.concatenate([[0], np.cumsum(np.diff(S[order]) > SAME_LEVEL)])
        keys = list(zip(scales.tolist(), level.tolist(), strict=True))
        names = sorted(set(keys))
        index = {name: position for position, name in enumerate(names)}
        return names, np.array([index[key] for key in keys])

    def at_levels(self, arch: str, sparsities: Sequence[float]) -> list[NDArray[np.int64]]:
        """Which of an architecture's points belong to each sparsity, none where it has no such level.

        A cell's level and a sparsity belong together where they are as close as a pair must be, and no other level of
        the scale, and no other of the sparsities, is closer.
        """
        names, cell = self._cells(arch, self.scales() if "scale" in self.headers else [""] * len(self.table))
        S = self.values["sparsity"][self.rows(arch)]
        level = np.array([S[cell == position].mean() for position in range(len(names))])
        apart = np.abs(level[:, None] - np.array(sparsities))
        for scale in {name for name, _ in names}:
            mine = [position for position, name in enumerate(names) if name[0] == scale]
            closest = apart[mine] == apart[mine].min(axis=0)
            apart[mine] = np.where(closest, apart[mine], np.inf)
        belongs = (apart <= PAIRED_LEVEL) & (apart == apart.min(axis=1, keepdims=True))
        return [np.flatnonzero(belongs[cell, index]) for index in range(len(sparsities))]

    def scales(self) -> list[str]:
        faults = Faults()
        header = self.headers.get("scale", "scale")
        if not self.table.need([header], faults):
            faults.tell()
        scales = self.table.texts(header, faults)
        faults.tell()
        return scales

    def paired_cells(self, target: str, reference: str) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """The cell of each row of two architectures that have the same cells, and how many those are."""
        (names, cell), (theirs, their_cell) = self.cells(target), self.cells(reference)
        alone = [(name, target) for name in names if name not in theirs]
        alone += [(name, reference) for name in theirs if name not in names]
        where = self.table.where
        if alone:
            lines = [f"{where}: scale {scale}, sparsity level {level + 1}: only {arch} has it"
                     for (scale, level), arch in alone]  # fmt: skip
            raise BadInput("\n".join(lines), "a paired bootstrap needs the same cells of both; --unpaired does not")
        for position, (scale, level) in enumerate(names):
            ours = self.values["sparsity"][self.rows(target)][cell == position][0]
            other = self.values["sparsity"][self.rows(reference)][their_cell == position][0]
            if abs(ours - other) > PAIRED_LEVEL:
                raise BadInput(f"{where}: scale {scale}, sparsity level {level + 1}: {target} has {ours:g}, "
                               f"{reference} has {other:g}: not a pair")  # fmt: skip
        return cell, their_cell, len(names)

    def sources(self, pattern: str) -> dict[str, Array]:
        """Per-source losses: the columns that match a pattern, without the loss itself."""
        headers = [header for header in self.table.matching(pattern) if header != self.headers["loss"]]
        if not headers:
            raise BadInput(f"{self.table.where}: no column matches {pattern!r}", "name them with --sources 'loss_*'")
        faults = Faults()
        found = {header: self.table.numbers(header, LOSS, faults) for header in headers}
        faults.tell()
        return found


def mapping(texts: Iterable[str], roles: Sequence[str] = ROLES) -> dict[str, str]:
    """``role=HEADER`` options as a mapping of roles to headers."""
    found: dict[str, str] = {}
    for text in texts:
        role, sign, header = text.partition("=")
        if not sign or not header.strip():
            raise BadInput(f"--column {text[:60]!r}: write ROLE=HEADER, such as flops_per_token=FLOPS")
        if role.strip() not in roles:
            raise BadInput(f"--column {text[:60]!r}: {role[:40]!r} is not a role", close_names(role[:40], roles))
        found[role.strip()] = header.strip()
    return found


def excluded(table: Table, conditions: Iterable[str]) -> Table:
    """The table without the rows that meet any condition: ``scale=100m``, ``run=*-rerun``, ``sparsity<0.5``."""
    met: dict[str, list[bool]] = {}
    faults = Faults()
    for text in conditions:
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise BadInput(f"--exclude {text[:60]!r}: write COLUMN=VALUE, or <, >, <=, >=, !=")
        header, sign, value = match.groups()
        if header not in table.columns:
            raise BadInput(f"--exclude {text[:60]!r}: no column {header[:40]!r}",
                           close_names(header[:40], table.columns))  # fmt: skip
        if sign not in ("=", "!="):
            _ordered(table, text, header, value, faults)
        met[text.strip()] = [_meets(cell, sign, value) for cell in table.columns[header]]
    faults.tell()
    return table.without(met)


def _ordered(table: Table, text: str, header: str, value: str, faults: Faults) -> None:
    """Both sides of < and > must be numbers."""
    if number(value) is None:
        faults.add(f"--exclude {text[:60]!r}: expected a number, found {value[:40]!r}",
                   "<, >, <= and >= compare numbers; words are matched with = and !=")  # fmt: skip
        return
    for line, cell in zip(table.lines, table.columns[header], strict=True):
        if number(cell) is None:
            faults.add(f"{table.where}:{line}: {header}: expected a number for --exclude {text[:60]!r}, "
                       f"found {str(cell)[:40]!r}")  # fmt: skip


def _meets(cell: object, sign: str, value: str) -> bool:
    left, right = number(cell), number(value)
    if left is None or right is None:
        same = fnmatch.fnmatchcase(str(cell).strip(), value.strip())
        return same == (sign == "=")
    return {"=": left == right, "!=": left != right, "<": left < right, ">": left > right, "<=": left <= right,
            ">=": left >= right}[sign]  # fmt: skip


def end_points(
    table: Table, form: str = "surface", headers: Mapping[str, str] | None = None, fixed: Iterable[str] = ()
) -> EndPoints:
    """The end points of a table; `BadInput` lists every row that is wrong.

    Args:
        table: The rows.
        form: A key of `NEEDED`: which roles there must be.
        headers: The header of each role that is not called like its role.
        fixed: Exponents that are given, whose column need not vary.
    """
    given = dict(headers or {})
    roles = {role: given.get(role, role) for role in ROLES}
    needed = [roles[role] for role in NEEDED[form]] + [header for header in given.values() if header]
    faults = Faults()
    if not table.need(dict.fromkeys(needed), faults):
        faults.tell()
    present = {role: header for role, header in roles.items() if header in table.columns}
    for role in NEAR:
        if role not in present and role not in given:
            _near(table, role, present.values(), faults)
    keep = {*NEEDED[form], *OPTIONAL}.difference(WORDS)
    values = {role: table.numbers(header, RULES[role], faults) for role, header in present.items() if role in keep}
    arch = table.texts(present["arch"], faults) if "arch" in present else [WHOLE] * len(table)
    faults.tell()
    unweighted = values["weight"] == 0 if "weight" in values else np.zeros(len(table), dtype=bool)
    if form in (*FITTED, "isoflop") and unweighted.any():
        return end_points(table.without({f"{present['weight']}=0": unweighted}), form, headers, fixed)
    found = EndPoints(table, present, np.array(arch), values, ())
    if form not in FITTED:
        return replace(found, warnings=tuple(_warnings(found, form)))
    _duplicates(found, faults)
    faults.tell()
    for name in found.architectures:
        _constant(found, name, form, set(fixed), faults)
    faults.tell()
    return EndPoints(table, present, found.arch, values, tuple(_warnings(found, form)))


def _near(table: Table, role: str, taken: Iterable[str], faults: Faults) -> None:
    """A column that is named almost like an optional role, which would be passed over in silence."""
    for header in set(table.columns).difference(taken):
        if get_close_matches(header.casefold(), NEAR[role], cutoff=0.85):
            faults.add(
                f"{table.where}: no column {role!r}; did you mean {header!r}?",
                f"--column {role}={header} says that it plays this role; another name for it that it does not",
            )


def _duplicates(found: EndPoints, faults: Faults) -> None:
    """A run that stands twice at the same number of tokens."""
    if "run" not in found.headers:
        return
    runs = found.table.texts(found.headers["run"], faults)
    seen: dict[tuple[str, str, float], int] = {}
    keys = zip(runs, found.arch.tolist(), found.values["tokens"].tolist(), strict=True)
    for line, (run, arch, tokens) in zip(found.table.lines, keys, strict=True):
        first = seen.setdefault((run, arch, tokens), line)
        if first != line:
            faults.add(
                f"{found.table.where}:{line}: run {run[:60]!r} ({arch}) ends at {tokens:g} tokens twice "
                f"(first on line {first})",
                "keep one end point for each run and number of tokens",
            )


def _constant(found: EndPoints, arch: str, form: str, fixed: set[str], faults: Faults) -> None:
    """Columns that do not vary, so that an exponent cannot be told."""
    rows = found.rows(arch)
    exponents = {"flops_per_token": "a", "params": "a", "tokens": "c", "sparsity": "b"}
    for role, exponent in exponents.items():
        if role not in NEEDED[form] or exponent in fixed:
            continue
        values = found.values[role][rows]
        if np.ptp(values) <= 1e-9 * abs(values[0]):
            faults.add(
                f"{found.table.where}: {arch}: {found.headers[role]} is {values[0]:g} in all {len(rows)} rows, "
                f"so that exponent {exponent} cannot be told",
                f"add runs at another {role}" + f", or give --fix {exponent}=VALUE",
            )


def _warnings(found: EndPoints, form: str) -> list[str]:
    told = [f"--exclude {text!r} leaves out no row" for text, count in found.table.left_out.items() if not count]
    if form not in (*FITTED, "isoflop"):
        return told
    if "arch" not in found.headers and form != "phi":
        told.append(f"no column 'arch': {len(found.table)} rows are fitted as one architecture")
    if form == "isoflop" and np.ptp(found.values.get("weight", np.ones(1))) > 0:
        told.append("--form isoflop uses no weights but 0, which leaves a row out")
    if form == "surface" and np.any(found.values["sparsity"] == 0) and np.any(found.values["sparsity"] > 0):
        count = int(np.sum(found.values["sparsity"] == 0))
        told.append(f"{count} rows at S = 0 take part; the paper's fit leaves them out: --exclude sparsity=0")
    keys = list(zip(found.arch.tolist(), *(found.values[role].tolist() for role in NEEDED[form] if role != "loss"),
                    strict=True))  # fmt: skip
    repeated = len(keys) - len(set(keys))
    if repeated:
        told.append(f"{repeated} rows repeat the cost of another row: they count as replicates"
                    + (", of which the least loss is taken" if form == "isoflop" else ""))  # fmt: skip
    return told
