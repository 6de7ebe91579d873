"""The command line: ``smelt-match``. One file a command; heavy libraries are imported inside them."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, NoReturn

import typer

from smelt_match import __version__
from smelt_match.cli import (
    ablate,
    audit,
    calibrate,
    card,
    contrast,
    corpus,
    count,
    export,
    fit,
    gain,
    grids,
    layouts,
    plan,
    solve,
    specs,
    train,
    verify,
)
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
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("card", epilog=card.EXAMPLES)(card.card)
app.command("layouts", epilog=layouts.EXAMPLES)(layouts.layouts)
app.command("grids", epilog=grids.EXAMPLES)(grids.grids)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("fit", epilog=fit.EXAMPLES)(fit.fit)
app.command("gain", epilog=gain.EXAMPLES)(gain.gain)
app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.add_typer(contrast.app, name="contrast")
app.command("train", epilog=train.EXAMPLES)(train.train)
app.add_typer(ablate.app, name="ablate")
app.add_typer(specs.app, name="specs")
app.add_typer(corpus.app, name="corpus")

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
    """Run the program and exit with its code.

    0 done, 1 no, 2 bad input, 3 part missing, 70 bug, 130 interrupted, 143 stopped by SIGTERM with its work saved.
    """
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run(args))


def _end(number: int, _: object) -> NoReturn:
    """Unwind, so that unfinished files are removed, and exit with the code that shells give an ended program."""
    sys.exit(128 + number)


@cache
def _command() -> Any:
    """The command that typer builds from the functions, built once for each process."""
    return typer.main.get_command(app)


def run(args: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    from typer.exceptions import TyperException

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a sign shows its escape
            stream.reconfigure(errors="backslashreplace")
    try:
        result = _command()(args, prog_name="smelt-match", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        if result == 130:  # the parser turns Ctrl-C into this code and says nothing
            typer.echo("interrupted", err=True)
        return result if isinstance(result, int) else 0
    except SmeltMatchError as error:
        return _told(error, error.message, error.hint, error.exit_code)
    except TyperException as error:
        return _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return 130
    except (BrokenPipeError, SystemExit) as error:  # the parser turns a reader that went away into an exit
        if not isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            raise
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        return _told(error, f"{error.filename or 'standard output'}: {error.strerror or error}", "", 2)
    except MemoryError as error:
        return _told(error, "out of memory", "use a coarser grid, or pin a dimension with --fix", 2)
    except Exception as error:
        return _told(error, f"{type(error).__name__}: {error}", "this is a bug of smelt-match; --debug shows where", 70)


def _drop_output() -> None:
    """Throw away what could not be written, so that the interpreter does not try again when it ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _misused(error: Any) -> int:
    """A command line that cannot be understood: what the parser says, and the value that it leaves out."""
    from smelt_match.spec.yaml import describe

    message = error.format_message()
    if message.startswith("Usage:"):  # no command was given
        typer.echo(message, err=True)
        return 2
    faults = getattr(error.__cause__, "errors", None)
    if faults is not None:
        message = message.replace(": Input should", ": should", 1)  # as faults of a file are told
        message = f"{message}, found {describe(faults()[0]['input'])}"
    return _told(error, message, "smelt-match --help, or smelt-match COMMAND --help", 2)


def _told(error: BaseException, message: str, hint: str, code: int) -> int:
    with suppress(OSError, ValueError):  # nobody can be told when stderr is full or closed
        if _debug:
            import traceback

            traceback.print_exception(error)
        for line in message.split("\n"):
            typer.echo(line if line.startswith(" ") else f"error: {line}", err=True)
        if hint:
            typer.echo(f"hint: {hint}", err=True)
    return code
