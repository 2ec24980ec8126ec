"""`halfmask train`: a file and a schema in, a model folder with its ledger and statement out."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.events import check_relation
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger
from halfmask.cli.options import (
    machines,
    read_schema,
    settings_options,
    training_options,
    training_rows,
)
from halfmask.cli.output import after_this, emit, json_option, keep_others_out, note
from halfmask.errors import InputError

CHECKPOINT, RUN = "checkpoint.npz", ".run"

if TYPE_CHECKING:
    from halfmask.model import Model


@click.command()
@training_options(
    epsilon="The privacy budget of this model.", ledger="a ledger in the model folder"
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The model folder.")
@click.option("--method", default="auto", show_default=True, help="auto, or a method by name.")
@settings_options("NAME")
@click.option("--resume", is_flag=True, help="Go on in a folder whose training was interrupted.")
@click.option("--unsafe-seed", type=int, help="Reproducible noise: the model is then NOT private.")
@click.option(
    "--reference",
    is_flag=True,
    help="Also score models without privacy on the same rows, to compare: NOT PRIVATE, printed "
    "only.",
)
@json_option
def train(
    data: Path,
    schema_file: Path,
    epsilon: float,
    delta: float,
    out: Path,
    method: str,
    settings: tuple[str, ...],
    config_file: Path | None,
    relation: str,
    ledger_file: Path | None,
    resume: bool,
    unsafe_seed: int | None,
    reference: bool,
    as_json: bool,
) -> None:
    """Train a model on DATA (CSV, Parquet or a folder of Parquet files) under a privacy budget.

    Under torchrun every process trains on its part of the rows: see docs/many-machines.md.
    """
    from halfmask.mechanisms.noise import noise_source
    from halfmask.mechanisms.shards import ALONE, rows_in_all
    from halfmask.model_folder import OWN
    from halfmask.report.covered import constant_words, covered_scores
    from halfmask.scoring import reference as without_privacy
    from halfmask.scoring import reference_lines
    from halfmask.settings import config_as_json
    from halfmask.training import train as fit
    from halfmask.training import whole_seconds

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    config = _config(method, settings, config_file)
    _check_folder(out, resume)
    schema = read_schema(schema_file, data)
    noise = noise_source(unsafe_seed)
    with (
        machines() as ranks,
        training_rows(data, schema, ranks, method=config or method) as (encoder, table, choice),
    ):
        leads = ranks is None or ranks.leads
        rows = rows_in_all(table.units, ranks or ALONE)
        if leads:
            note(f"Method {choice.method}: {choice.reason}.")
            _warn(delta, rows, unsafe_seed)
        charged = ledger_file or out / OWN
        started = time.perf_counter()
        with _ledger(out, ledger_file, budget, leads) as ledger:
            model = fit(
                table,
                budget,
                method=choice,
                noise=noise if ranks is None else noise_source(unsafe_seed, machine=ranks.rank),
                encoder=encoder,
                ledger=ledger,
                ranks=ranks,
                checkpoint=None if ranks else out / CHECKPOINT,
            )
            seconds = whole_seconds(started)
            if not leads:
                return
            with after_this():
                _save(model, out, charged)
                for stored in (out / CHECKPOINT, (out / CHECKPOINT).with_suffix(RUN)):
                    stored.unlink(missing_ok=True)
    covered = covered_scores(model.details)
    compared = without_privacy(table) if reference else None
    result = {
        "model": str(out),
        "method": model.method,
        "reason": model.reason,
        "settings": None if config is None else config_as_json(config),
        "rows": rows,
        "machines": 1 if ranks is None else ranks.count,
        "privacy": model.privacy.to_json(),
        "base_rate": model.details.get("base"),
        "covered": None if covered is None else covered.to_json(),
        "reference": compared,
        "ledger": str(charged),
        "seconds": seconds,
    }
    scored = f"{covered.text(seeded=model.privacy.seeded)}\n\n" if covered is not None else ""
    if model.details.get("base_rate_only"):
        scored = f"{textwrap.fill(constant_words(model.details, model.classes), 80)}\n\n"
    text = f"{model.privacy.text()}\n\n{scored}Model written to {out} ({seconds} s)."
    if compared is not None:
        where = "each of these rows scored by a model that did not see it"
        text = "\n".join([text, *reference_lines(compared, where)])
    emit(result, text, as_json)


def _config(method: str, settings: tuple[str, ...], file: Path | None) -> Any:
    """The configuration that --set and --config make; None where neither says anything."""
    from halfmask.settings import config_from_words

    if method == "auto" and (settings or file is not None):
        raise InputError("Settings belong to a method: name it with --method.")
    return config_from_words(method, settings, file)


def _warn(delta: float, rows: int, unsafe_seed: int | None) -> None:
    if delta >= 1 / rows:
        note(
            f"Warning: delta={delta:g} is not below 1 / rows ({1 / rows:.1g}): a guarantee "
            "that fails for one row in the table is worth little. Pass a smaller --delta."
        )
    if unsafe_seed is not None:
        note("Warning: --unsafe-seed makes the noise reproducible. This model is NOT private.")


@contextmanager
def _ledger(
    out: Path, ledger_file: Path | None, budget: Budget, leads: bool
) -> Iterator[BudgetLedger]:
    """The data set's ledger, or one in the model folder; an unused one leaves nothing behind.

    The one ledger of several machines is that of the first; the others hold none that counts.
    """
    from halfmask.model_folder import LINK, OWN

    if not leads:
        yield MemoryLedger.of(budget)
        return
    fresh = not out.exists()
    ledger = None
    out.mkdir(parents=True, exist_ok=True)
    keep_others_out(out, "training", "with --out")
    try:
        if ledger_file is not None:
            ledger = Ledger.open(ledger_file)
        else:
            ledger = Ledger.open_or_create(
                out / OWN, epsilon=budget.epsilon, delta=budget.delta, relation=budget.relation
            )
        yield ledger
    except BaseException as error:
        if ledger is None or not _charged(out, ledger):
            if fresh and out.exists():
                shutil.rmtree(out)
        elif not (out / "model.json").exists():
            if isinstance(error, KeyboardInterrupt):
                note(_stays_charged(out, ledger))
            (out / LINK).unlink(missing_ok=True)
            if fresh and not any(out.iterdir()):  # what is spent stands in the data set's ledger
                out.rmdir()
        raise


def _save(model: Model, out: Path, charged: Path) -> None:
    """Write the model; where the disk is full or gone, say what that costs."""
    from halfmask.model_folder import link_ledger

    try:
        link_ledger(out, charged)  # first: no kill leaves a model that does not know its ledger
        model.save(out, overwrite=True)  # _check_folder has looked; a ledger is there by now
    except OSError as error:
        raise InputError(
            f"The model cannot be written to {str(out)!r}: {error.strerror}. What it released "
            "stays spent in the ledger. Make room, or name another folder with --out, and train "
            "again with a budget that allows it."
        ) from error


def _stays_charged(out: Path, ledger: Ledger) -> str:
    spent = f"Something was released by then, so epsilon {printed(ledger.spent())} stays spent in "
    if (out / CHECKPOINT).with_suffix(RUN).exists():
        return f"{spent}{ledger.path.name}. Go on with the same command and --resume."
    return f"{spent}{ledger.path.name}. No model was written: name a new folder with --out."


def _charged(out: Path, ledger: Ledger) -> bool:
    """Whether the ledger holds something of the training in this folder."""
    from halfmask.model_folder import OWN

    if (out / OWN).exists():
        return bool(ledger.events())
    if ledger.charged_here:
        return True
    run = (out / CHECKPOINT).with_suffix(RUN)
    return run.exists() and any(entry.run == run.read_text() for entry in ledger.entries())


def _check_folder(out: Path, resume: bool) -> None:
    """Refuse to overwrite a model, or to mix into a folder of something else."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file: name a folder with --out.")
    if (out / "model.json").exists():
        raise InputError(
            f"{str(out)!r} holds a finished model: name a new folder with --out, or remove it. "
            "A removed model's budget stays spent."
        )
    if out.is_dir() and any(out.iterdir()) and not resume:
        raise InputError(
            f"{str(out)!r} exists and is not empty: name a new folder with --out, or pass --resume "
            "to continue an interrupted training there."
        )
