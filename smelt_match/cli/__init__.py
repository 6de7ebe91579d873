"""The command line: ``smelt-match``. One file a command; heavy libraries are imported inside them."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from smelt_match import __version__
from smelt_match.cli import count, grids, layouts, solve, specs, verify
from smelt_match.errors import SmeltMatchError

app = typer.Typer(
    name="smelt-match",
    help="Find the looped Transformer that costs the same as a baseline in training FLOPs per token, stored "
    "parameters and KV cache, and prove how close the match is.\n\n"
    "Start with:  smelt-match solve --baseline 200m_s95 --loop mid50x2",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("solve", epilog=solve.EXAMPLES)(solve.solve)
app.command("count", epilog=count.EXAMPLES)(count.count)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify)
app.command("layouts", epilog=layouts.EXAMPLES)(layouts.layouts)
app.command("grids", epilog=grids.EXAMPLES)(grids.grids)
app.add_typer(specs.app, name="specs")

_debug = False


def _version(value: bool) -> None:
    if value:
        typer.echo(f"smelt-match {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Show the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    global _debug
    _debug = debug


def main(args: list[str] | None = None) -> NoReturn:
    """Run the program and exit with its code (0 done, 1 no, 2 bad input, 3 part missing, 70 bug, 130 interrupted)."""
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    from typer.exceptions import TyperException

    try:
        result = app(args, prog_name="smelt-match", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SmeltMatchError as error:
        return _told(error, error.message, error.hint, error.exit_code)
    except TyperException as error:
        written = getattr(error, "format_message", None)
        return _told(
            error, written() if written else str(error), "smelt-match --help, or smelt-match COMMAND --help", 2
        )
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError as error:
        return _told(error, "out of memory", "use a coarser grid, or pin a dimension with --fix", 2)
    except Exception as error:
        return _told(error, f"{type(error).__name__}: {error}", "this is a bug of smelt-match; --debug shows where", 70)


def _told(error: BaseException, message: str, hint: str, code: int) -> int:
    if _debug:
        import traceback

        traceback.print_exception(error)
    for line in message.splitlines() or [""]:
        typer.echo(line if line.startswith(" ") else f"error: {line}", err=True)
    if hint:
        typer.echo(f"hint: {hint}", err=True)
    return code
