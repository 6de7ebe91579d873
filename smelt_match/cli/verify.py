"""``smelt-match verify``: recompute a certificate by independent code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smelt_match.errors import AnswerIsNo, BadInput

EXAMPLES = """Examples:

  smelt-match solve -b 200m_s95 -l mid50x2 --format json -o match.json

  smelt-match verify match.json"""


def verify(
    file: Annotated[Path, typer.Argument(help="JSON written by `smelt-match solve --format json`.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show failures only.")] = False,
) -> None:
    """Check a match's certificate by a second program that shares no code with the solver.

    Exit 1 if any claim does not hold.
    """
    import json

    from smelt_match.files import read_text
    from smelt_match.match.verify import NOT_CHECKED
    from smelt_match.match.verify import verify as verify_document

    try:
        document = json.loads(read_text(file, "certificate", limit=2**28))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file}: not JSON: {error}", "verify reads what `solve --format json` writes") from None
    checks = verify_document(document, str(file))
    failed = [check for check in checks if not check.holds]
    for check in checks:
        if check.holds and not quiet:
            typer.echo(f"holds   {check.name}")
    if failed:
        lines = [
            f"{check.name}: the file says {_cut(check.claimed)}, recomputed {_cut(check.found)}" for check in failed
        ]
        raise AnswerIsNo("\n".join(lines), f"{len(failed)} of {len(checks)} claims do not hold")
    typer.echo(f"all {len(checks)} claims hold; not checked: {NOT_CHECKED}")


def _cut(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "…"
