"""From a table to a fitted model with its statement: choose, calibrate, charge, release, state."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger
from halfmask.data.products import fixed_order
from halfmask.data.scratch import available
from halfmask.errors import InputError
from halfmask.mechanisms.noise import NoiseSource
from halfmask.mechanisms.release import Interrupted, MakeReleaser, Releaser, SharedReleaser
from halfmask.mechanisms.shards import ALONE, rows_in_all
from halfmask.methods.auto import Choice, Problem, choose
from halfmask.methods.fitted import LINEAR_METHODS, linear_method
from halfmask.model import LinearModel, Model
from halfmask.model_folder import MOST_TEXT
from halfmask.schema import Schema
from halfmask.settings import CONFIG, MethodConfig, config_for, split_method
from halfmask.statement import Statement, made_notes
from halfmask.storage import json_text, write_durably
from halfmask.table import CodedFeatures, Encoder, Table

if TYPE_CHECKING:
    from halfmask.neural.distributed import Ranks


METHODS = ("auto", "additive", *LINEAR_METHODS, "mlp")
RUN = ".run"  # beside a checkpoint, as halfmask.cli.train knows it
SPREAD_METHODS = ("additive", "one-shot", "gd", "mlp")
"""Methods whose rows may be spread over several machines."""


def choose_method(
    method: str | MethodConfig | Choice,
    facts: Table | Schema,
    *,
    options: Mapping[str, Any] | None = None,
    spread: bool = False,
) -> Choice:
    """The method with its settings: as asked for, or what `auto` picks from public facts alone.

    This is the one place where a method is chosen; what was chosen before stays. With `spread`,
    rows lie on several machines: only methods that can be spread are considered.
    """
    if isinstance(method, Choice):
        return method
    name, given = split_method(method, options)
    if name == "auto":
        found = Problem.of_schema(facts) if isinstance(facts, Schema) else Problem.of(facts)
        choice = choose(replace(found, levels=found.levels and not spread))
    elif name in METHODS:
        choice = Choice(method=name, reason="asked for by name")
    else:
        raise InputError(f"Unknown method {name!r}: expected one of {', '.join(METHODS)}.")
    return replace(choice, config=config_for(choice.method, given)) if given else choice


def train(
    table: Table,
    budget: Budget,
    *,
    method: str | MethodConfig | Choice,
    noise: NoiseSource,
    encoder: Encoder | None = None,
    ledger: str | Path | BudgetLedger | None = None,
    row_norm: float | None = None,
    options: Mapping[str, Any] | None = None,
    ranks: Ranks | None = None,
    checkpoint: str | Path | None = None,
    make_releaser: MakeReleaser | None = None,
    public_model: Any = None,
    sample_weight: Any = None,
) -> Model:
    """Fit `table` within `budget` and state what was promised.

    `method` is a name, with `options` as fields of its configuration, or that configuration, or
    what `choose_method` made of them.
    Everything that can be wrong with the input is found before the ledger is charged, and the
    whole training is one charge, made at its first release: it fits, or it costs nothing.
    With `checkpoint` a training of mlp that was interrupted goes on there, within what it has
    charged; the file beside it that ends in .run holds its name in the ledger. With `ranks`
    every machine makes this call on its own rows; only the first one's ledger is charged.
    `make_releaser` makes the releaser: an audit has its own.
    With a public label `public_model` is an unfitted scikit-learn estimator that takes the place
    of additive's free model of the public columns. `sample_weight` are public weights, one for
    each row of the frame that `table` came from.
    """
    if table.label is None:
        raise InputError("Training needs the label: pass it with the data.")
    _check_unit(table)
    frame_rows = table.n if table.unit is None else None
    if not table.label_private:
        # Which public labels are missing is public too.
        table = table.labelled()
    choice = choose_method(method, table, options=options, spread=ranks is not None)
    config = config_for(choice.method, {CONFIG: choice.config})
    if choice.method != "mlp" and table.features.n != table.n:
        raise InputError(f"The file was decoded for mlp: {choice.method} has to read it anew.")
    if ranks is not None:
        _check_spread(table, choice.method, weighed=sample_weight is not None)
        if choice.method == "additive":
            if encoder is not None:
                _check_same_levels(encoder, ranks)
            _check_same_digits(ranks)
    # A map or a penalty of the user's reads numbers.
    own = [getattr(config, name, None) for name in ("feature_map", "penalty", "regulariser")]
    blocks = any(each is not None and each != "none" for each in own)
    check_memory(table, choice.method, blocks=blocks)
    if encoder is not None:
        _check_storable(encoder)
    weights = _checked_weights(sample_weight, table, choice.method, frame_rows)
    if public_model is not None and choice.method != "additive":
        raise InputError(
            f"Method {choice.method!r} has no free model: public_model is for additive, which "
            "needs a schema and a public label."
        )
    book = open_ledger(ledger, budget)
    if ranks is None:
        stored = choice.method == "mlp" and checkpoint is not None
        run = run_name(Path(checkpoint)) if stored and checkpoint is not None else ""
        before = interrupted(book, run) if stored else None
        how: dict[str, Any] = {"run": run, "interrupted": before}
        releaser = (make_releaser or Releaser)(book, noise, budget=budget, whole_plan=True, **how)
    else:
        releaser = (make_releaser or SharedReleaser)(
            book, noise, ranks, budget=budget, whole_plan=True
        )
    releaser.rows = rows_in_all(table.n, ranks or ALONE)
    common: dict[str, Any] = {
        "encoder": encoder,
        "task": table.task,
        "classes": table.classes,
        "label_bounds": table.label_bounds,
        "row_norm": row_norm,
        "method": choice.method,
        "reason": choice.reason,
        "options": {} if choice.config is None else {CONFIG: choice.config},
    }
    if choice.method == "mlp":
        from halfmask.neural.method import NeuralModel, fit_mlp

        with _taking_back(releaser):
            network = fit_mlp(table, releaser, config, checkpoint=checkpoint)
            return NeuralModel.of(network, privacy=state(table, releaser), **common)
    width = len(table.public_sources) + len(table.private_sources)
    with _taking_back(releaser), fixed_order(width):
        if choice.method == "additive":
            from halfmask.additive_model import AdditiveConfig, AdditiveModel, fit_additive

            given = AdditiveConfig(public_model=public_model, sample_weight=weights)
            added = fit_additive(table, releaser, given)
            stated = state(table, releaser, notes=added.notes)
            return AdditiveModel(privacy=stated, details=added.details, fit=added, **common)
        fitter = linear_method(choice.method)
        fit = fitter(table, releaser, config)
        return LinearModel(
            privacy=state(table, releaser),
            details={"rows_counted": table.units, **fit.details},
            fit=fit,
            **common,
        )


@contextmanager
def _taking_back(releaser: Releaser) -> Iterator[None]:
    """Ctrl-C between the charge and the first release costs nothing."""
    try:
        yield
    except KeyboardInterrupt:
        releaser.take_back()
        raise


def open_ledger(ledger: str | Path | BudgetLedger | None, budget: Budget) -> BudgetLedger:
    """The ledger to charge: a file's, one that is open already, or one for this fit alone."""
    if ledger is None:
        return MemoryLedger.of(budget)
    book = Ledger.open(ledger) if isinstance(ledger, str | Path) else ledger
    if book.relation != budget.relation:
        raise InputError(
            f"The ledger keeps its budget under {book.relation!r}, this model asks for "
            f"{budget.relation!r}: pass {book.relation!r} as the relation (--relation "
            f"{book.relation}), or use another ledger."
        )
    return book


def run_name(checkpoint: Path) -> str:
    """The name of the training that is stored there, in the ledger; a new one where there is none.

    It is on the disk before anything is charged, so that no charge loses its training.
    """
    file = checkpoint.with_suffix(RUN)
    name = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else ""
    if len(name) == 32:
        return name
    # Cut off, it would be no name: two trainings without one must not pass for each other.
    file.parent.mkdir(parents=True, exist_ok=True)
    name = secrets.token_hex(16)
    write_durably(file, name.encode("ascii"), mode=0o666)
    return name


def interrupted(book: BudgetLedger, run: str) -> Interrupted | None:
    """What the ledger holds of a training of that name."""
    if not isinstance(book, Ledger):
        return None
    chain = book.verify()
    found = next((charge for charge in chain.charges if charge.run == run), None)
    if found is None:
        return None
    return Interrupted(
        charge=found.seq, events=found.events, begun=chain.begun(found.seq), seeded=found.seeded
    )


def _check_unit(table: Table) -> None:
    """Refuse rows whose units were not read: what a unit can change is unknown then."""
    unit = None if table.schema is None else table.schema.unit
    if unit is not None and table.unit is None:
        raise InputError(
            f"The schema protects the units of column {unit.column!r}, and this table was encoded "
            "without them: encode it with with_unit=True."
        )


def _check_spread(table: Table, method: str, *, weighed: bool) -> None:
    """Refuse what needs all rows in one place."""
    if method not in SPREAD_METHODS:
        raise InputError(
            f"Method {method!r} needs all rows on one machine: on several, use one of "
            f"{', '.join(SPREAD_METHODS)}."
        )
    if table.unit is not None:
        raise InputError("A table with a [unit] needs all rows on one machine: start one process.")
    if weighed:
        # The heaviest of all rows counts as 1, and the statement of the first machine says so.
        raise InputError("A sample_weight needs all rows on one machine: start one process.")


def _check_same_levels(encoder: Encoder, ranks: Ranks) -> None:
    """Refuse machines that have learnt different levels of public columns."""
    if _differ(json.dumps(encoder.to_json(), sort_keys=True).encode(), ranks):
        raise InputError(
            "Method 'additive' learns levels from all rows of public columns: on several machines "
            "it needs one file that each of them can read, or method 'gd'."
        )


def _check_same_digits(ranks: Ranks) -> None:
    """Refuse machines whose linear algebra differs: each would make other features of a level.

    Sums of unlike features stay within their charge, but no model comes of them.
    """
    if _differ(_axes_of_a_kernel().tobytes(), ranks):
        raise InputError(
            "Method 'additive' needs machines whose processors compute alike, and these differ in "
            "last digits: use machines of one kind, or method 'gd'."
        )


def _axes_of_a_kernel() -> NDArray[np.float64]:
    """Numbers that follow from the processor's ways of computing, as features of levels do."""
    places = np.linspace(0, 1, 65)
    kernel = np.exp(-((places[:, None] - places) ** 2) / 0.02) + 0.01 * np.eye(len(places))
    with fixed_order(len(places)):
        values, axes = np.linalg.eigh(kernel)
        return np.vstack([values, axes, kernel @ axes])


def _differ(content: bytes, ranks: Ranks) -> bool:
    """Whether machines hold different bytes."""
    mark = int.from_bytes(hashlib.sha256(content).digest()[:6], "big")
    marks = ranks.gather(np.array([float(mark)]))
    return bool((marks != marks[0]).any())


def _check_storable(encoder: Encoder) -> None:
    """Refuse columns whose description no model folder may hold, before they are paid for.

    Levels and edges are declared, or learnt from public columns, so the size tells nothing. Half
    is left for what training adds.
    """
    size = len(json_text(encoder.to_json()))
    if size > MOST_TEXT // 2:
        raise InputError(
            f"The columns' levels and edges take {_size(size)} as text, and a model folder holds "
            f"at most {_size(MOST_TEXT // 2)} of it; nothing was charged. Leave out public "
            "columns, or declare fewer bins and categories."
        )


def _checked_weights(
    given: Any, table: Table, method: str, frame_rows: int | None
) -> NDArray[np.float64] | None:
    """Public weights of the table's rows; None where there are none, or all are the same.

    `frame_rows` is None where a unit's rows beyond its first ones are not in the table.
    """
    if given is None:
        return None
    weights = weights_as_numbers(given, int(table.rows.max()) + 1)
    if frame_rows not in (None, len(weights)) or len(weights) <= int(table.rows.max(initial=0)):
        raise InputError(
            "Expected one sample_weight for each row of the frame"
            + (f": {frame_rows}, got {len(weights)}." if frame_rows else f", got {len(weights)}.")
        )
    kept: NDArray[np.float64] = weights[table.rows]
    if not kept.any():
        raise InputError("Every sample_weight is zero: at least one row has to count.")
    if (kept == kept[0]).all():
        return None
    if method != "additive":
        raise InputError(
            f"Method {method!r} takes no sample_weight: leave it out, or use additive, which needs "
            "a schema and learns classes or a number."
        )
    return kept


def weights_as_numbers(given: Any, rows: int) -> NDArray[np.float64]:
    """`given` as finite numbers >= 0; a single number stands for as many as there are `rows`."""
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("Expected sample_weight to be numbers, one for each row.") from None
    if weights.ndim > 1:
        raise InputError("Sample weights must be 1D array or scalar: one number for each row.")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        raise InputError(
            f"sample_weight, row {int(wrong.argmax()) + 1}: expected a finite number >= 0."
        )
    return np.full(rows, float(weights)) if weights.ndim == 0 else weights


def whole_seconds(started: float) -> int:
    """Since `started` (of `time.perf_counter`), rounded up: the exact time of a fit may depend on
    private rows, and whatever is printed or stored of it may be seen."""
    return math.ceil(time.perf_counter() - started)


# Measured, docs/scale.md. Methods with blocks hold them, and up to two copies at a time.
_BY_ROW = 200
_BY_CLASS = 50
_BY_LINEAR_ROW = 700
_BY_OUTPUT = 64
_BLOCKS = 3
_BY_PRODUCT = 100
# A network holds few rows and makes of many those of a part of a batch: numbers of 4 bytes each.
_HELD = 1 << 28
_AT_ONCE = 4 * 4
_MOST_AT_ONCE = 1 << 16
_BY_NETWORK_ROW = 100
_MOST_PAIRED = 6000  # more would take minutes and many gigabytes, whatever the machine


def needed(table: Table, method: str, *, blocks: bool = False) -> int:
    """Bytes that a fit of `method` will take, about; from public sizes alone.

    With `blocks` it has to make features as numbers, although the table holds codes.
    """
    width = len(table.public_sources) + len(table.private_sources)
    if method == "mlp":
        at_once = _AT_ONCE * width * min(table.n, _MOST_AT_ONCE)
        return min(4 * table.n * width, _HELD) + at_once + _BY_NETWORK_ROW * table.n
    if method == "additive":
        classes = len(table.classes or ())
        return (_BY_ROW + _BY_CLASS * (classes if classes > 2 else 0)) * table.n
    products = _BY_PRODUCT * width**2 if method == "one-shot" else 0
    if isinstance(table.features, CodedFeatures) and not blocks:
        kept = 2 * 16 * sum(column.numbers is not None for column in table.features.columns)
        by_row = _BY_LINEAR_ROW + kept + _BY_OUTPUT * max(len(table.classes or ()) - 2, 0)
        return by_row * table.n + products
    copies = _BLOCKS if isinstance(table.features, CodedFeatures) else _BLOCKS - 1
    return 8 * copies * table.n * width + products


def check_memory(table: Table, method: str, *, blocks: bool = False) -> None:
    """Refuse a fit that cannot succeed."""
    need, free = needed(table, method, blocks=blocks), available()
    width = len(table.public_sources) + len(table.private_sources)
    if free is None or need <= free:
        if method == "one-shot" and width > _MOST_PAIRED:
            raise InputError(
                f"Method 'one-shot' holds products of all pairs of at most {_MOST_PAIRED:,} "
                f"features, and the rows have {width:,}; nothing was charged. Use method 'gd', "
                "which holds none, or declare fewer bins and categories."
            )
        return
    what = f"{table.n:,} rows" if method == "additive" else f"{table.n:,} rows x {width:,} features"
    raise InputError(
        f"Method {method!r} needs about {_size(need)} of memory for {what}, and {_size(free)} are "
        f"free; nothing was charged. {_instead(table, method)}"
    )


def _instead(table: Table, method: str) -> str:
    if method == "one-shot" and len(table.private_sources) > table.n // 10:
        return "It holds products of all pairs of features: use method 'gd', which holds none."
    if method != "additive" and table.features.coded:
        return (
            "Use method 'additive', which takes about "
            f"{_size(needed(table, 'additive'))}, or declare fewer bins and categories."
        )
    return "Use a machine with more memory, or spread the rows: docs/many-machines.md."


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


SKIPPED_PRIVATE = (
    "Labels may be missing. Whether a row has one is protected like the label itself, so the "
    "number of rows that have one is not told."
)
KNOWN_LABEL = "Of the private label {} counts as public, for every training row."
SKIPPED_PUBLIC = "Rows without a label were left out: which rows have one counts as public."


def state(table: Table, releaser: Releaser, *, notes: Sequence[str] = ()) -> Statement:
    """The statement of a fit on `table` whose releases all went through `releaser`."""
    schema = table.schema
    notes = [*releaser.notes, *notes]
    if schema is None and table.task == "classification":
        notes.append("The set of labels present in the data counts as public.")
    if schema is None and table.private_sources:
        notes.append(f"Rows were clipped to Euclidean norm {table.private_norm:g}.")
    if schema is not None and schema.label.missing == "skip":
        # Said for the declaration, whether or not a label was missing.
        notes.append(SKIPPED_PRIVATE if table.label_private else SKIPPED_PUBLIC)
    if schema is not None:
        public, private, label = schema.public, schema.private, schema.label.name
        notes += made_notes(schema)
        if schema.label.public is not None:
            notes.append(KNOWN_LABEL.format(schema.label.public))
    else:
        public = tuple(dict.fromkeys(table.public_sources))
        private, label = tuple(dict.fromkeys(table.private_sources)), "y"
    return Statement.build(
        events=releaser.events,
        delta=releaser.budget.delta,
        relation=releaser.relation,
        public=public,
        private=private,
        label=label,
        label_private=table.label_private,
        released=releaser.released,
        noise=releaser.noise,
        unit_column=None if schema is None or schema.unit is None else schema.unit.column,
        max_rows=table.rows_per_unit,
        notes=notes,
    )
