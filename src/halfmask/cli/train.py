"""`halfmask train`: a file and a schema in, a model folder with its ledger and statement out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.options import settings_options, training_options
from halfmask.cli.output import emit, json_option, note, reporting
from halfmask.cli.rows import machines, training_rows
from halfmask.cli.schemas import read_schema

CHECKPOINT = "checkpoint.npz"

if TYPE_CHECKING:
    from halfmask.accounting.budget import Budget
    from halfmask.accounting.ledger import BudgetLedger, Ledger


@click.command()
@training_options(
    epsilon="The privacy budget of this model.", ledger="a ledger in the model folder"
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The model folder.")
@click.option("--method", default="auto", show_default=True, help="auto, or a method by name.")
@settings_options("NAME")
@click.option("--resume", is_flag=True, help="Go on in a folder whose training was interrupted.")
@click.option("--unsafe-seed", type=int, help="Reproducible noise: the model is then NOT private.")
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
    as_json: bool,
) -> None:
    """Train a model on DATA (CSV, Parquet or a folder of Parquet files) under a privacy budget.

    Under torchrun every process trains on its part of the rows: see docs/many-machines.md.
    """
    from halfmask.accounting.budget import Budget
    from halfmask.accounting.relations import check_relation
    from halfmask.mechanisms.noise import noise_source
    from halfmask.mechanisms.shards import ALONE, rows_in_all
    from halfmask.model_ledger import OWN, link_ledger
    from halfmask.report.covered import covered_scores
    from halfmask.settings import config_as_json
    from halfmask.training import RUN, choose_method, whole_seconds
    from halfmask.training import train as fit

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    config = _config(method, settings, config_file)
    _check_folder(out, resume)
    schema = read_schema(schema_file, data)
    noise = noise_source(unsafe_seed)
    with (
        reporting("train") as tell,
        _reading(tell, data),
        machines() as ranks,
        training_rows(data, schema, ranks, budget, method=method) as (encoder, table),
    ):
        leads = ranks is None or ranks.leads
        choice = choose_method(method, table, budget, spread=ranks is not None)
        rows = rows_in_all(table.units, ranks or ALONE)
        if leads:
            note(f"Method {choice.method}: {choice.reason}.")
            _warn(delta, rows, unsafe_seed)
        started = time.perf_counter()
        tell(0.3, f"{rows:,} rows, method {choice.method}")
        with _ledger(out, ledger_file, budget, leads) as ledger:
            model = fit(
                table,
                budget,
                method=method if config is None else config,
                noise=noise if ranks is None else noise_source(unsafe_seed, machine=ranks.rank),
                encoder=encoder,
                ledger=ledger,
                ranks=ranks,
                checkpoint=None if ranks else out / CHECKPOINT,
            )
        if not leads:
            return
    seconds = whole_seconds(started)
    model.save(out)
    for stored in (out / CHECKPOINT, (out / CHECKPOINT).with_suffix(RUN)):
        stored.unlink(missing_ok=True)
    charged = ledger_file or out / OWN
    link_ledger(out, charged)
    covered = covered_scores(model.details)
    result = {
        "model": str(out),
        "method": model.method,
        "reason": model.reason,
        "settings": None if config is None else config_as_json(config),
        "rows": rows,
        "machines": 1 if ranks is None else ranks.count,
        "privacy": model.privacy.to_json(),
        "covered": None if covered is None else covered.to_json(),
        "ledger": str(charged),
        "seconds": seconds,
    }
    scored = f"{covered.text(seeded=model.privacy.seeded)}\n\n" if covered is not None else ""
    text = f"{model.privacy.text()}\n\n{scored}Model written to {out} ({seconds} s)."
    emit(result, text, as_json)


def _config(method: str, settings: tuple[str, ...], file: Path | None) -> Any:
    """The configuration that --set and --config make; None where neither says anything."""
    from halfmask.errors import InputError
    from halfmask.settings import config_from_words, read_config

    if method == "auto" and (settings or file is not None):
        raise InputError("Settings belong to a method: name it with --method.")
    told = None if file is None else read_config(file, method)
    return config_from_words(method, settings, told)


@contextmanager
def _reading(tell: Callable[[float, str], None], data: Path) -> Iterator[None]:
    tell(0.05, f"reading {data.name}")
    yield


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
    from halfmask.accounting.ledger import Ledger, MemoryLedger
    from halfmask.errors import HalfmaskError
    from halfmask.model_ledger import OWN

    if not leads:
        yield MemoryLedger.of(budget)
        return
    fresh = not out.exists()
    if ledger_file is not None:
        ledger = Ledger.open(ledger_file)
    else:
        out.mkdir(parents=True, exist_ok=True)
        ledger = Ledger.open_or_create(
            out / OWN, epsilon=budget.epsilon, delta=budget.delta, relation=budget.relation
        )
    try:
        yield ledger
    except (HalfmaskError, KeyboardInterrupt):
        if fresh and out.exists() and not _charged(out, ledger):
            shutil.rmtree(out)
        raise


def _charged(out: Path, ledger: Ledger) -> bool:
    """Whether the ledger holds something of the training in this folder."""
    from halfmask.model_ledger import OWN
    from halfmask.training import RUN

    if (out / OWN).exists():
        return bool(ledger.events())
    run = (out / CHECKPOINT).with_suffix(RUN)
    return run.exists() and any(entry.run == run.read_text() for entry in ledger.entries())


def _check_folder(out: Path, resume: bool) -> None:
    """Refuse to overwrite a model, or to mix into a folder of something else."""
    from halfmask.errors import InputError

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
