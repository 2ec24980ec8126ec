"""`halfmask studio`: a page on this machine to make a schema, see its price, train and read."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

import click

from halfmask.cli.options import PATH
from halfmask.cli.output import emit, json_option, note
from halfmask.errors import InputError


@click.command()
@click.argument("file", type=PATH)
@click.option(
    "--schema",
    "schema_file",
    type=PATH,
    help="The schema to start from, if it exists, and to save to.  [default: FILE's name, .toml]",
)
@click.option(
    "--dictionary",
    "dictionaries",
    multiple=True,
    type=PATH,
    help="Bounds and categories: a data dictionary (CSV), or another schema (TOML). Repeatable.",
)
@click.option("--label", metavar="NAME", help="The column to predict.")
@click.option(
    "--ledger",
    "ledger_file",
    type=PATH,
    help="The ledger that trainings charge.  [default: ledger.jsonl in the folder of --out]",
)
@click.option(
    "--out", type=PATH, help="The folder for models and reports.  [default: FILE's name, -studio]"
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="A port; 0 takes a free one."
)
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@json_option
def studio(
    file: Path,
    schema_file: Path | None,
    dictionaries: tuple[Path, ...],
    label: str | None,
    ledger_file: Path | None,
    out: Path | None,
    port: int,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Open a page on this machine for FILE: roles by click, the price of privacy, training, report.

    Nothing of a private column is shown or sent, not even to the page; only files named here are
    read, and nothing leaves this machine. Ctrl-C ends it; the draft is kept.
    """
    import starlette  # noqa: F401  (say that it is missing before the work, not after)
    import uvicorn  # noqa: F401

    from halfmask.data.reading import open_rows
    from halfmask.studio.server import LOOPBACK, application, listening, serve_studio
    from halfmask.studio.workshop import Files, Workshop

    if str(file) == "-" or file.is_fifo():
        raise InputError("The studio needs a file: training reads it again. Save the rows first.")
    stem = file.name.split(".")[0] or "data"
    folder = out or Path(f"{stem}-studio")
    files = Files(
        data=file,
        schema=schema_file or Path(f"{stem}.toml"),
        out=folder,
        ledger=ledger_file or folder / "ledger.jsonl",
        dictionaries=dictionaries,
    )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file: name a folder with --out.")
    with open_rows(file) as rows, listening(port) as opened:
        workshop = Workshop(files, rows, label=label)
        token, bound = secrets.token_urlsafe(32), int(opened.getsockname()[1])
        address = f"http://{LOOPBACK}:{bound}/?token={token}"
        emit(
            {
                "address": address,
                "schema": str(files.schema),
                "draft": str(workshop.draft.file),
                "ledger": str(files.ledger),
                "out": str(files.out),
            },
            f"{file}: {rows.num_rows:,} rows, {len(rows.column_names)} columns.\n\n    {address}\n",
            as_json,
        )
        sys.stdout.flush()
        note("Ctrl-C ends it; what you chose is kept.")
        page = None if no_browser else _opened(address)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            serve_studio(application(workshop, token=token, port=bound), opened)
        except KeyboardInterrupt:
            pass
        finally:
            workshop.close()
            if page is not None:
                page.unlink(missing_ok=True)
    kept = workshop.draft.file
    note(f"Ended. The draft is in {kept}." if kept.exists() else "Ended. Nothing was changed.")


def _opened(address: str) -> Path | None:
    """Open a browser by a file that only this user can read: all users see arguments."""
    import webbrowser

    fd, name = tempfile.mkstemp(prefix="halfmask-studio-", suffix=".html")
    with os.fdopen(fd, "w", encoding="utf-8") as written:
        written.write(
            f'<!DOCTYPE html><meta charset="utf-8"><title>halfmask studio</title>'
            f'<meta http-equiv="refresh" content="0; url={address}">'
            f'<p><a href="{address}">Open the studio</a></p>'
        )
    try:
        opened = webbrowser.open(Path(name).as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        note("No browser could be opened: open the address above.")
    return Path(name)
