"""The default on five tables of people, under four sets of roles: how much privacy costs.

A method is judged through the scikit-learn face alone. Every third row (after one row per person)
is held out; models and their settings come from the other rows, and the labels of the held-out rows
are read once, by `measure`, after everything is fitted. Adult keeps its published test part.

*kept* is the share of the best model without privacy: explained log loss (R² for numbers) over that
of the better of binned ridge regression and boosted trees, at most 1.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from halfmask.cli.output import grid
from halfmask.data.cells import level_text
from halfmask.data.frames import numbers, texts
from halfmask.datasets import load_adult
from halfmask.errors import HalfmaskError, InputError, suggest
from halfmask.progress import side_by_side
from halfmask.schema import Column, Label, Role, Schema
from halfmask.storage import replacing
from halfmask_lab.loaders import PEOPLE, load_people
from halfmask_lab.results import Progress, experiment, result_row, saved, silent
from halfmask_lab.table_baselines import (
    EBM_VARIANTS,
    LEAVES,
    MOST_TREES,
    PENALTIES,
    TREE_OPTIONS,
    BaselineFit,
    Kind,
    Task,
    class_loss,
    constant,
    ebm_class,
    fit_ebm,
    fit_without_privacy,
)
from halfmask_lab.table_checks import Cell, Measured, checks

TABLES = (*PEOPLE, "adult")
# On request: several classes, several rows of a person.
WIDER = ("diabetes-three", "visits-people", "occupation")
ROLES = ("all", "half", "features", "label")
EPSILONS = (0.1, 0.5, 1.0, 4.0)
EBM_EPSILONS = (0.5, 1.0, 4.0)
DELTA = 1e-6
METHODS = ("auto", "dp-ebm")
_HELD_OUT = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """A table with one row per person: rows to learn from, rows held out, a half-masked schema."""

    name: str
    train: pa.Table
    test: pa.Table
    schema: Schema

    @property
    def task(self) -> Task:
        return self.schema.label.task

    def target(self, frame: pa.Table) -> np.ndarray:
        """The label as 0, 1 and so on, in the order of the classes, or as a number."""
        label = self.schema.label
        if label.classes is None:
            return numbers(frame, label.name)
        codes = {level_text(level): place for place, level in enumerate(label.classes)}
        return np.array([codes[value] for value in texts(frame, label.name).to_pylist()])

    def with_roles(self, role: str) -> Schema:
        """The schema under one of `ROLES`; bounds and categories stay."""
        column_role: Role | None = {"all": "private", "label": "public"}.get(role)  # type: ignore[assignment]
        label_role: Role = "public" if role == "features" else "private"
        columns = self.schema.columns
        if column_role is not None:
            columns = tuple(replace(column, role=column_role) for column in columns)
        label = replace(self.schema.label, role=label_role)
        return replace(self.schema, label=label, columns=columns)


def load_rows(name: str, data: Path | None) -> Rows:
    """One of `TABLES` or `WIDER`."""
    if name in ("adult", "occupation"):
        train, test, schema = load_adult()
        rows = Rows(name=name, train=train, test=test, schema=schema)
        return rows if name == "adult" else _occupation(rows)
    frame, schema = load_people(name.partition("-")[0], data)
    if name in WIDER:
        return held_out(name, frame, schema, one_row=False)
    return held_out(name, frame, schema, against_rest="soon" if name == "diabetes" else None)


def _occupation(rows: Rows) -> Rows:
    """Adult's occupation (14 classes) from its other columns; the income becomes one of them."""
    label = rows.schema.label
    asked = next(column for column in rows.schema.columns if column.name == "occupation")
    assert asked.categories is not None
    known = [level_text(level) for level in asked.categories]
    levels = tuple(level_text(level) for level in label.classes or ())
    income = Column(label.name, "private", kind="category", categories=levels)
    columns = [column for column in rows.schema.columns if column is not asked]

    def with_one(frame: pa.Table) -> pa.Table:
        found = np.isin(np.array(texts(frame, asked.name).to_pylist(), dtype=object), known)
        return frame.filter(pa.array(found))

    return Rows(
        name="occupation",
        train=with_one(rows.train),
        test=with_one(rows.test),
        schema=Schema(
            label=Label(asked.name, "private", classes=asked.categories),
            columns=(*columns, income),
        ),
    )


def held_out(
    name: str,
    frame: pa.Table,
    schema: Schema,
    against_rest: str | None = None,
    *,
    one_row: bool = True,
) -> Rows:
    """Every third unit is held out; of each unit the first row is kept, or all of them.

    `against_rest` makes two classes of several: that one, and `rest`.
    """
    order = np.arange(frame.num_rows)
    if schema.unit is not None:
        units = np.array(texts(frame, schema.unit.column).to_pylist(), dtype=object).astype(str)
        first, order = np.unique(units, return_index=True, return_inverse=True)[1:]
        if one_row:
            frame = frame.take(np.sort(first))
            order = np.arange(frame.num_rows)
    label = schema.label
    if against_rest is not None:
        found = np.array(texts(frame, label.name).to_pylist(), dtype=object) == against_rest
        place = frame.column_names.index(label.name)
        two = pa.array(np.where(found, against_rest, "rest").tolist())
        frame = frame.set_column(place, label.name, two)
        label = Label(label.name, label.role, classes=("rest", against_rest), party=label.party)
    apart = order % _HELD_OUT == _HELD_OUT - 1
    return Rows(
        name=name,
        train=frame.filter(pa.array(~apart)),
        test=frame.filter(pa.array(apart)),
        schema=Schema(label=label, columns=schema.columns, unit=None if one_row else schema.unit),
    )


def run(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 5,
    epsilons: Sequence[float] = EPSILONS,
    tables: Sequence[str] = TABLES,
    roles: Sequence[str] = ROLES,
    methods: Sequence[str] = METHODS,
) -> dict[str, Any]:
    """Every method on every table, role set and epsilon, and what must hold of the default."""
    check_among("table", tables, (*TABLES, *WIDER))
    check_among("role", roles, ROLES)
    if draws < 1:
        raise InputError(f"Expected at least one draw, got {draws}.")
    loaded = [load_rows(name, data) for name in tables]
    return judge(
        loaded,
        out,
        tell,
        seed=seed,
        draws=draws,
        epsilons=tuple(epsilons),
        roles=tuple(roles),
        methods=tuple(methods),
    )


def check_among(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a word that is not known, with the one that was probably meant."""
    for word in given:
        if word not in known:
            hint = suggest(word, known)
            raise InputError(f"Unknown {what} {word!r}.{hint} Expected {', '.join(known)}.")


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One fit: a baseline on all or on the public columns, or a private method's draw."""

    table: int
    method: str
    kind: Kind | None = None
    public_only: bool = False
    role: str = ""
    epsilon: float = 0.0
    draw: int = 0


def judge(
    loaded: Sequence[Rows],
    out: Path | None,
    tell: Progress,
    *,
    seed: int,
    draws: int,
    epsilons: tuple[float, ...],
    roles: tuple[str, ...],
    methods: tuple[str, ...],
) -> dict[str, Any]:
    """Fit all of it, two at a time; then score."""
    left_out: list[dict[str, str]] = []
    if "dp-ebm" in methods and ebm_class() is None:
        methods = tuple(method for method in methods if method != "dp-ebm")
        reason = "interpret-core is not installed: pip install interpret-core==0.7.8"
        left_out.append({"method": "dp-ebm", "reason": reason})
    jobs = _jobs(loaded, draws=draws, epsilons=epsilons, roles=roles, methods=methods)
    done = side_by_side(
        lambda job: _fitted(job, loaded[job.table], out, seed),
        jobs,
        lambda count: tell(0.99 * count / len(jobs), f"{count} of {len(jobs)} fits"),
    )
    predictions: dict[Cell, list[np.ndarray]] = {}
    settings: dict[str, dict[str, str]] = {}
    chosen: dict[str, set[str]] = {}
    for place, rows in enumerate(loaded):
        found = {job: fit for job, fit in zip(jobs, done, strict=True) if job.table == place}
        predictions |= _without_noise(rows, roles, found, settings)
        for job, fit in found.items():
            if job.kind is not None:
                continue
            if fit.predicted is None:
                skipped = {"table": rows.name, "role": job.role, "method": job.method}
                if (entry := {**skipped, "reason": fit.setting}) not in left_out:
                    left_out.append(entry)
                continue
            cell = Cell(rows.name, job.role, job.method, job.epsilon)
            predictions.setdefault(cell, []).append(fit.predicted)
            if job.method == "auto":
                chosen.setdefault(f"{rows.name}, {job.role}", set()).add(fit.setting)
    measured: dict[Cell, dict[str, list[float]]] = {}
    for rows in loaded:
        mine = {cell: drawn for cell, drawn in predictions.items() if cell.table == rows.name}
        measured |= measure(rows, mine)
    counts = {rows.name: rows.train.num_rows + rows.test.num_rows for rows in loaded}
    return experiment(
        "tables",
        _results(measured),
        figure=saved(out and out / "tables.png", lambda: draw_figure(measured)),
        rows={r.name: {"train": r.train.num_rows, "test": r.test.num_rows} for r in loaded},
        chosen={where: sorted(names) for where, names in chosen.items()},
        settings=settings,
        left_out=left_out,
        checks=checks(measured, counts, wider=WIDER),
    )


def _jobs(
    loaded: Sequence[Rows],
    *,
    draws: int,
    epsilons: tuple[float, ...],
    roles: tuple[str, ...],
    methods: tuple[str, ...],
) -> list[_Job]:
    """The long ones first, so that no core waits for one at the end."""
    jobs = [
        _Job(table=place, method=kind, kind=kind, public_only=public_only)
        for place in range(len(loaded))
        for kind in reversed(get_args(Kind))
        for public_only in ((False, True) if "features" in roles else (False,))
    ]
    for place, rows in enumerate(loaded):
        for method in methods:
            ebm = method == "dp-ebm"
            if ebm and (rows.task != "classification" or len(rows.schema.label.classes or ()) > 2):
                continue
            jobs += [
                _Job(table=place, method=name, role=role, epsilon=epsilon, draw=draw)
                for name in (EBM_VARIANTS if ebm else (method,))
                for role in roles
                if role == "all" or not ebm
                for epsilon in epsilons
                if epsilon in EBM_EPSILONS or not ebm
                for draw in range(draws)
            ]
    return jobs


def unsafe_seed(*parts: object) -> int:
    """A seed of its own for every table, role, epsilon and draw."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _fitted(job: _Job, rows: Rows, out: Path | None, seed: int) -> BaselineFit:
    import sklearn.ensemble  # noqa: F401  (its OpenMP is limited only once it is loaded)
    from threadpoolctl import threadpool_limits

    # Each worker has one core, and OpenMP waits for ever on threads that a fork left behind.
    with threadpool_limits(limits=1):
        if job.kind is not None:
            columns = [
                column
                for column in rows.schema.columns
                if column.role == "public" or not job.public_only
            ]
            return cached(out, job.kind, columns, rows)
        number = unsafe_seed(seed, rows.name, job.role, f"{job.epsilon:g}", job.draw)
        if job.method in EBM_VARIANTS:
            predicted = fit_ebm(
                EBM_VARIANTS[job.method],
                rows.schema.columns,
                rows.train,
                rows.target(rows.train),
                rows.test,
                epsilon=job.epsilon,
                delta=DELTA,
                seed=number,
            )
            return BaselineFit(predicted=predicted)
        return _private(job, rows, number)


def _private(job: _Job, rows: Rows, number: int) -> BaselineFit:
    """A method of this package, by its public face; the test rows go in without their label."""
    from halfmask.estimators import HalfmaskClassifier, HalfmaskRegressor

    estimator = HalfmaskRegressor if rows.task == "regression" else HalfmaskClassifier
    model = estimator(
        rows.with_roles(job.role),
        epsilon=job.epsilon,
        delta=DELTA,
        method=job.method,
        unsafe_seed=number,
    )
    asked = rows.test.drop_columns([rows.schema.label.name])
    try:
        model.fit(rows.train)
    except HalfmaskError as error:
        # A method by name may not know these roles; the default must know all of them.
        if job.method == "auto":
            raise
        return BaselineFit(predicted=None, setting=str(error))
    if rows.task == "regression":
        return BaselineFit(predicted=model.predict(asked), setting=model.method_)
    names = [level_text(level) for level in rows.schema.label.classes or ()]
    found = [level_text(level) for level in model.classes_]
    chances = model.predict_proba(asked)[:, [found.index(name) for name in names]]
    return BaselineFit(
        predicted=chances[:, 1] if len(names) == 2 else chances, setting=model.method_
    )


def fit_by_name(
    rows: Rows, role: str, method: str, epsilon: float, *, draw: int, seed: int
) -> tuple[np.ndarray | None, str]:
    """Predictions of the test rows and the method chosen, or None and why it refuses."""
    job = _Job(table=0, method=method, role=role, epsilon=epsilon, draw=draw)
    done = _fitted(job, rows, None, seed)
    return done.predicted, done.setting


def cached(out: Path | None, kind: Kind, columns: Sequence[Column], rows: Rows) -> BaselineFit:
    """A model without privacy, fitted once per folder `out`: its predictions are kept there."""
    import sklearn

    names = [column.name for column in columns]
    label = rows.schema.label.name

    def fit() -> BaselineFit:
        target = rows.target(rows.train)
        return fit_without_privacy(kind, columns, rows.train, target, rows.test, rows.task)

    if out is None:
        return fit()
    state = hashlib.sha256(
        json.dumps(
            [kind, names, sklearn.__version__, PENALTIES, LEAVES, MOST_TREES, TREE_OPTIONS]
        ).encode()
    )
    for frame in (rows.train.select([*names, label]), rows.test.select(names)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, frame.schema) as stream:
            stream.write_table(frame.combine_chunks())
        state.update(sink.getvalue())
    path = out / "tables-cache" / f"{rows.name}-{kind}-{state.hexdigest()[:16]}.npz"
    if path.is_file():
        with np.load(path, allow_pickle=False) as stored:
            return BaselineFit(
                predicted=stored["predicted"],
                held_out=float(stored["held_out"]),
                setting=str(stored["setting"]),
            )
    found = fit()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        np.savez(unfinished, **vars(found))
    return found


def _without_noise(
    rows: Rows,
    roles: tuple[str, ...],
    found: Mapping[_Job, BaselineFit],
    settings: dict[str, dict[str, str]],
) -> dict[Cell, list[np.ndarray]]:
    """Constant, binned, boosted, best and free; the same for every role set but free."""
    binned = "logistic" if rows.task == "classification" else "ridge"
    fits = {(job.kind, job.public_only): fit for job, fit in found.items() if job.kind is not None}

    def better(public_only: bool) -> tuple[Kind, BaselineFit]:
        kinds: tuple[Kind, ...] = get_args(Kind)
        kind = min(kinds, key=lambda k: fits[k, public_only].held_out)
        return kind, fits[kind, public_only]

    kind, best = better(False)
    named = {
        "constant": constant(rows.target(rows.train), rows.test.num_rows, rows.task),
        binned: fits["binned", False].predicted,
        "boosted": fits["boosted", False].predicted,
        "best": best.predicted,
    }
    words: dict[Kind, str] = {"binned": binned, "boosted": "boosted"}
    settings[rows.name] = {"best": f"{words[kind]}, {best.setting}"}
    cells = {
        Cell(rows.name, role, method, None): [predicted]
        for role in roles
        for method, predicted in named.items()
        if predicted is not None
    }
    if "features" in roles:
        kind, free = better(True)
        assert free.predicted is not None
        settings[rows.name]["free"] = f"{words[kind]}, {free.setting}"
        cells[Cell(rows.name, "features", "free", None)] = [free.predicted]
    return cells


def measure(
    rows: Rows, predictions: Mapping[Cell, Sequence[np.ndarray]]
) -> dict[Cell, dict[str, list[float]]]:
    """All metrics of one table: the only place where labels of held-out rows are read."""
    target = rows.target(rows.test)
    base = constant(rows.target(rows.train), len(target), rows.task)
    scored = {
        cell: [scores(target, predicted, base, rows.task) for predicted in drawn]
        for cell, drawn in predictions.items()
    }
    for cell, drawn in scored.items():
        best = scored[cell._replace(method="best", epsilon=None)][0]["explained"]
        for found in drawn:
            found["kept"] = min(1.0, found["explained"] / best) if best > 0 else np.nan
    return {
        cell: {metric: [found[metric] for found in drawn] for metric in drawn[0]}
        for cell, drawn in scored.items()
    }


def scores(
    target: np.ndarray, predicted: np.ndarray, base: np.ndarray, task: Task
) -> dict[str, float]:
    """log_loss, auc, accuracy (classes) or rmse, r2 (numbers), explained and calibration_error.

    `base` is the constant prediction: the mean of the training rows' label. Of three classes and
    more, the calibration error is the mean of theirs, and there is no AUC.
    """
    from sklearn.metrics import roc_auc_score

    if task == "regression":
        error = float(np.mean((target - predicted) ** 2))
        explained = 1 - error / float(np.mean((target - base) ** 2))
        return {
            "rmse": float(np.sqrt(error)),
            "r2": explained,
            "explained": explained,
            "calibration_error": calibration_error(target, predicted),
        }
    loss, two = class_loss(target, predicted), predicted.ndim == 1
    chances = [predicted] if two else predicted.T
    best = predicted > 0.5 if two else predicted.argmax(axis=1)
    errors = [calibration_error(target == k, p) for k, p in enumerate(chances, start=int(two))]
    return {
        "log_loss": loss,
        **({"auc": float(roc_auc_score(target, predicted))} if two else {}),
        "accuracy": float(np.mean(best == target)),
        "explained": 1 - loss / class_loss(target, base),
        "calibration_error": float(np.mean(errors)),
    }


def calibration_error(target: np.ndarray, predicted: np.ndarray, bins: int = 10) -> float:
    """Mean distance of the mean prediction from the mean label, over bins of equal count.

    Equal predictions share a bin, so that the order of rows does not matter.
    """
    from scipy.stats import rankdata

    place = (rankdata(predicted) - 0.5) / len(predicted)
    codes = np.minimum((place * bins).astype(int), bins - 1)
    off = np.bincount(codes, weights=target - predicted, minlength=bins)
    return float(np.abs(off).sum() / len(predicted))


def _results(measured: Measured) -> list[dict[str, Any]]:
    """A row per cell and metric, in the order of tables and roles."""
    names = list(dict.fromkeys(cell.table for cell in measured))
    cells = sorted(measured, key=lambda cell: (names.index(cell.table), ROLES.index(cell.role)))
    relations = {name: variant.relation for name, variant in EBM_VARIANTS.items()}
    return [
        result_row(
            cell.method,
            metric,
            values,
            cell.epsilon,
            DELTA,
            relations.get(cell.method, "replace"),
            table=cell.table,
            role=cell.role,
        )
        for cell in cells
        for metric, values in measured[cell].items()
    ]


def draw_figure(measured: Measured) -> Any:
    """Kept against epsilon, one panel per role set."""
    from matplotlib.figure import Figure as Canvas

    roles = [role for role in ROLES if any(cell.role == role for cell in measured)]
    canvas = Canvas(figsize=(3.2 * len(roles) + 0.8, 3.6), layout="constrained")
    panels = canvas.subplots(1, len(roles), sharey=True, squeeze=False)[0]
    for role, axes in zip(roles, panels, strict=True):
        curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for cell, values in measured.items():
            if cell.role == role and cell.epsilon is not None and cell.method in ("auto", "dp-ebm"):
                point = (cell.epsilon, float(np.mean(values["kept"])))
                curves.setdefault((cell.method, cell.table), []).append(point)
        for (method, table), points in curves.items():
            epsilon, kept = zip(*sorted(points), strict=True)
            dashed = method == "dp-ebm"
            axes.plot(
                epsilon,
                kept,
                marker="o",
                color=f"C{[*TABLES, *WIDER, table].index(table)}",
                linestyle="--" if dashed else "-",
                label=f"{table}, DP-EBM" if dashed else table,
            )
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_title(role, fontsize=10)
        axes.set_xlabel(f"epsilon (delta = {DELTA:g})")
        axes.legend(fontsize=7)
    panels[0].set_ylim(-0.1, 1.05)
    panels[0].set_ylabel("kept of the best without privacy")
    return canvas


_SHOWN: dict[str, tuple[str, ...]] = {
    "log loss / RMSE": ("log_loss", "rmse"),
    "AUC / R²": ("auc", "r2"),
    "accuracy": ("accuracy",),
    "kept": ("kept",),
    "calibration error": ("calibration_error",),
}


def for_terminal(result: dict[str, Any]) -> object:
    """The results as a table for a terminal, one line per fit, and the checks below."""
    from rich.console import Group

    lines: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in result["results"]:
        key = (row["table"], row["role"], row["method"], row["epsilon"])
        # Models without noise are the same for all roles, but for the free one.
        if row["epsilon"] is None and row["method"] != "free":
            key = (row["table"], "", row["method"], None)
        lines.setdefault(key, {})[row["metric"]] = f"{row['mean']:.4f}"

    def measured(key: tuple[Any, ...], metrics: dict[str, str]) -> tuple[str, ...]:
        epsilon = "none" if key[3] is None else f"{key[3]:g}"
        cells = (next((metrics[m] for m in names if m in metrics), "") for names in _SHOWN.values())
        return *key[:3], epsilon, *cells

    def judged(check: dict[str, Any]) -> tuple[str, ...]:
        holds = "yes" if check["holds"] else f"no ({check['failed']} of {check['cases']})"
        worst, bar = (f"{check[part]:.4f}" for part in ("worst", "bar"))
        return check["name"], holds, worst, bar, check["where"]

    headings = ("table", "role", "method", "epsilon", *_SHOWN)
    table = grid(f"tables ({result['data']})", headings, itertools.starmap(measured, lines.items()))
    headings = ("check", "holds", "worst", "bar", "where")
    checked = grid("checks", headings, map(judged, result["checks"]))
    missing = [
        f"Left out: {' '.join(v for k, v in entry.items() if k != 'reason')} ({entry['reason']})"
        for entry in result["left_out"]
    ]
    return Group(table, checked, *missing)
