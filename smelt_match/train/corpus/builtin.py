"""The corpus that needs no download: a committed sample, Python's standard library, and texts of installed packages.

Five stand-ins for the categories of the paper's validation set (arXiv 2609.01343v3, Sec. 3.1): Code, Math, Knowledge,
Finance and Web. The sample is the same everywhere; the rest depends on the Python and the packages that are installed,
and the digest of the corpus says so. Source files are parsed, never imported.
"""

from __future__ import annotations

import ast
import json
import platform
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from smelt_match.errors import BadInput
from smelt_match.train.corpus.document import Document
from smelt_match.train.manifest import Origin

SAMPLE = Path(__file__).parent.parent / "sample"
PROVENANCE = "provenance.json"
STDLIB_WITHOUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data", "__pycache__"}
PSF = "PSF-2.0"
# Packages that smelt-match itself needs and whose terms allow copies; numbers of the licences are SPDX's.
DOCSTRINGS = dict.fromkeys(("sympy", "mpmath", "numpy", "networkx"), "BSD-3-Clause")
READMES = {
    "numpy": "BSD-3-Clause", "sympy": "BSD-3-Clause", "mpmath": "BSD-3-Clause", "networkx": "BSD-3-Clause",
    "torch": "BSD-3-Clause", "optuna": "MIT", "alembic": "MIT", "SQLAlchemy": "MIT", "Mako": "MIT", "PyYAML": "MIT",
    "tqdm": "MIT", "rich": "MIT", "typer": "MIT", "click": "BSD-3-Clause", "Pygments": "BSD-2-Clause",
    "pydantic": "MIT",
    "pydantic_core": "MIT", "annotated-types": "MIT", "typing_extensions": PSF, "ruamel.yaml": "MIT", "tabulate": "MIT",
    "Jinja2": "BSD-3-Clause", "MarkupSafe": "BSD-3-Clause", "fsspec": "BSD-3-Clause", "colorlog": "MIT",
    "markdown-it-py": "MIT", "mdurl": "MIT", "setuptools": "MIT", "fvcore": "Apache-2.0", "packaging": "Apache-2.0",
}  # fmt: skip


class BuiltIn:
    """Documents that need no download.

    Args:
        sample_only: Whether to stop after the committed sample.
    """

    def __init__(self, sample_only: bool = False) -> None:
        check_sample()
        self._sample_only = sample_only
        self._documents: list[Document] = []
        self._origins: dict[tuple[str, str, str], int] = Counter()

    def read(self) -> list[Document]:
        """All documents, in a fixed order; those of the libraries are parsed once."""
        if not self._documents:
            self._documents = list(self._all())
        return self._documents

    def unusable(self) -> int:
        """Items left out: none."""
        return 0

    def skipped(self) -> list[str]:
        """Items left out, and why: none."""
        return []

    def _all(self) -> Iterator[Document]:
        yield from read_sample()
        if self._sample_only:
            return
        python = f"CPython {platform.python_version()}"
        yield from self._counted(_stdlib(), "Lib/**/*.py", python, PSF)
        yield from self._counted(language_topics(), "Lib/pydoc_data/topics.py", python, PSF)
        for name, licence in DOCSTRINGS.items():
            yield from self._counted(_docstrings(name), f"docstrings of {name}", _release(name), licence)
        for name, licence in READMES.items():
            yield from self._counted(_readme(name), f"description of {name}", _release(name), licence)

    def provenance(self) -> list[Origin]:
        """Where each group of documents came from, after a reading."""
        installed = [
            Origin(item=item, origin=origin, licence=licence, documents=count)
            for (item, origin, licence), count in self._origins.items()
        ]
        return [*sample_provenance(), *installed]

    def _counted(self, documents: Iterator[Document], item: str, origin: str, licence: str) -> Iterator[Document]:
        for document in documents:
            self._origins[item, origin, licence] += 1
            yield document


def read_sample() -> Iterator[Document]:
    """The documents of the committed sample."""
    for path in sorted(SAMPLE.glob("*.jsonl")):
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                record = json.loads(line)
                yield Document(record["source"], record["category"], record["text"])


def sample_provenance() -> list[Origin]:
    """What the committed sample is made of."""
    entries: list[dict[str, Any]] = json.loads((SAMPLE / PROVENANCE).read_text(encoding="utf-8"))["items"]
    return [Origin(**{name: entry[name] for name in Origin.model_fields}) for entry in entries]


def _stdlib() -> Iterator[Document]:
    """Each module of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in _modules(root, STDLIB_WITHOUT):
        yield Document("python-stdlib", "Code", path.read_text(encoding="utf-8", errors="replace"))


def _modules(root: Path, without: set[str]) -> list[Path]:
    found = (path for path in root.rglob("*.py") if without.isdisjoint(path.relative_to(root).parts[:-1]))
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def language_topics() -> Iterator[Document]:
    """The chapters of the language reference that ``help()`` shows."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():  # some systems package it apart
        return
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(node.value)
            for name in sorted(topics):
                yield Document("python-reference", "Knowledge", topics[name])


def _docstrings(name: str) -> Iterator[Document]:
    """The docstrings of each module of a package, as one document a module."""
    for path in _package_modules(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):  # a template, or for another Python
                continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        text = "\n\n".join(text for text in texts if text)
        if len(text) >= 200:
            yield Document(f"{name}-docstrings", "Math", text)


def _package_modules(name: str) -> list[Path]:
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return []
    names = sorted(
        (file for file in files if file.suffix == ".py" and file.parts[0] == name and "tests" not in file.parts),
        key=str,
    )
    paths = (Path(str(file.locate())) for file in names)
    return [path for path in paths if path.is_file()]


def _readme(name: str) -> Iterator[Document]:
    """The page that an installed package describes itself with."""
    try:
        message = cast(Message, metadata.metadata(name))
    except metadata.PackageNotFoundError:
        return
    text = message.get("Description") or message.get_payload()
    if isinstance(text, str) and len(text) >= 200:
        yield Document("package-pages", "Web", text)


def _release(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return name


def check_sample() -> None:
    """Refuse an installation without its sample."""
    if not (SAMPLE / PROVENANCE).is_file():
        raise BadInput(f"{SAMPLE}: the package's own sample is missing", "reinstall smelt-match")
