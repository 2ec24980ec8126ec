"""`halfmask vertical predict`: the parties' scores of rows by id, added up to predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.output import emit, json_option, note
from halfmask.errors import InputError

if TYPE_CHECKING:
    from halfmask.vertical.block import Vector
    from halfmask.vertical.part import Part, VerticalModel

FILE = click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True)


def named_files(pairs: tuple[str, ...], option: str) -> dict[str, Path]:
    """NAME=FILE words as a mapping."""
    files: dict[str, Path] = {}
    for pair in pairs:
        name, separator, file = pair.partition("=")
        if not (name and separator and file):
            raise InputError(f"{option} takes NAME=FILE, got {pair!r}.")
        if name in files:
            raise InputError(f"{option} names party {name!r} twice: keep one.")
        files[name] = Path(file)
    return files


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, resolve_path=True))
@click.option("--id-file", type=FILE, required=True, help="A column of the ids to predict.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The CSV to write.")
@click.option(
    "--party",
    "parties",
    multiple=True,
    metavar="NAME=FILE",
    help="A party that is here: its rows, or its own TOML file, whose [queries] then apply.",
)
@click.option("--ca", type=FILE, help="Over Flower: certificate authority, PEM.")
@click.option("--cert", type=FILE, help="Over Flower: this server's certificate, PEM.")
@click.option("--key", type=FILE, help="Over Flower: its private key, PEM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9443, show_default=True)
@json_option
def predict(
    run: Path,
    id_file: Path,
    out: Path,
    parties: tuple[str, ...],
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    host: str,
    port: int,
    as_json: bool,
) -> None:
    """Predict the rows of an id file with RUN; rows stay in order.

    RUN is the folder of `vertical simulate --out`, or the run file of `vertical serve`. Without
    --party the parties are asked over Flower: each runs `vertical join` again, and decides by the
    [queries] of its own file. A score tells its row's own columns to whoever sees it.
    """
    import pyarrow as pa
    import pyarrow.csv

    from halfmask.model_folder import replacing
    from halfmask.vertical.queries import REVEALS, read_ids

    model = load_model(run)
    ids = read_ids(id_file, model.id)
    note(REVEALS)
    if parties:
        score = scores_of(run, model, ids, named_files(parties, "--party"))
    else:
        score = _asked(run, model, ids, {"ca": ca, "cert": cert, "key": key}, host, port)
    columns = [pa.array(model.predicted(score).tolist())]
    names = ["prediction"]
    if model.classes is not None:
        columns += [pa.array(each) for each in model.probabilities(score).T]
        names += [f"p_{name}" for name in model.classes]
    with replacing(out) as path:
        pyarrow.csv.write_csv(pa.table(columns, names=names), path)
    result = {"rows": len(ids), "out": str(out), "columns": names, "parties": list(model.parties)}
    emit(result, f"{len(ids)} predictions written to {out}.", as_json)


def load_model(run: Path) -> VerticalModel:
    """The label holder's side of a model: of a folder, or of the run that a file describes."""
    from halfmask.vertical.network import read_run_file
    from halfmask.vertical.part import VerticalModel

    return VerticalModel.load(run if run.is_dir() else read_run_file(run).out)


def scores_of(run: Path, model: VerticalModel, ids: list[Any], files: Mapping[str, Path]) -> Vector:
    """Scores from parties that are all here: their rows with the parts in RUN, or their files."""
    from halfmask.vertical.channel import Answering, LocalChannel
    from halfmask.vertical.network import NetworkParty, read_party_file
    from halfmask.vertical.part import Part
    from halfmask.vertical.queries import QueryDesk, ask_scores, is_party_file

    desks: dict[str, Answering] = {}
    for name, file in files.items():
        if not file.is_file():
            raise InputError(f"--party {name}: there is no file {str(file)!r}.")
        if is_party_file(file):
            desks[name] = NetworkParty(read_party_file(file)).desk()
        else:
            part = Part.load((run if run.is_dir() else run.parent) / "parties" / name)
            desks[name] = QueryDesk(part=partial(_same, part), data=file, id=model.id)
    return ask_scores(LocalChannel(desks), model, ids)


def _same(part: Part) -> Part:
    return part


def _asked(
    run: Path, model: VerticalModel, ids: list[Any], files: Mapping[str, Path | None], *at: Any
) -> Vector:
    """Scores over Flower: a SuperLink for the time of one question."""
    import numpy as np

    from halfmask.cli.vertical_network import SCORES, Link, coordinated
    from halfmask.vertical.network import read_run_file
    from halfmask.vertical.store import write_durably

    if run.is_dir():
        raise InputError(
            "Name the rows of each party with --party NAME=FILE, or pass the run file of "
            "`vertical serve` to ask the parties over Flower."
        )
    lacking = [f"--{name}" for name, file in files.items() if file is None]
    if lacking:
        raise InputError(f"To ask the parties over Flower, pass {', '.join(lacking)} as for serve.")
    settings = read_run_file(run)
    link = Link(
        ca=files["ca"] or run,
        cert=files["cert"] or run,
        key=files["key"] or run,
        host=at[0],
        port=at[1],
    )
    question = settings.out / "query.json"
    write_durably(question, json.dumps([str(value) for value in ids]).encode())
    try:
        result = coordinated(run, settings, link, query=question)
    finally:
        question.unlink(missing_ok=True)
        # Scores tell private columns: they are handed on, not kept.
        (settings.out / SCORES).unlink(missing_ok=True)
    return np.asarray(result["scores"], dtype=np.float64)
