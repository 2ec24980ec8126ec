"""Adult beside other packages at one epsilon: DP-EBM, a linear model by Opacus, diffprivlib.

Each peer is given what it knows: none has public columns, so all that they can do is to keep every
column and the label private. DP-EBM takes bounds and levels of the schema; Opacus and diffprivlib
the one-hot bins of declared bounds that `gd` takes. The learning rate of Opacus is chosen on held
out training rows, unpaid, which flatters it. Epsilons of peers are for adding or removing a row,
which is weaker than `replace`; diffprivlib's has no delta.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.datasets import adult_tables, all_private, load_adult
from halfmask.schema import Schema
from halfmask.scoring import class_scores
from halfmask.table import Table
from halfmask_lab.results import Progress, experiment, models, result_row, silent
from halfmask_lab.table_baselines import EBM_VARIANTS, ebm_class, fit_ebm

DELTA = 1e-6
RATES = (0.5, 2.0, 8.0)
"""Learning rates of which the one for Opacus is chosen."""
_EPOCHS, _BATCH = 20, 1024
_METRICS = ("log_loss", "auc", "accuracy")


def run(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 3,
    epsilons: tuple[float, ...] = (1.0,),
) -> dict[str, Any]:
    """Test scores of each package for each epsilon."""
    left_out: list[dict[str, str]] = []
    rows: list[dict[str, Any]] = []
    for place, epsilon in enumerate(epsilons):

        def told(share: float, text: str, place: int = place) -> None:
            tell((place + share) / len(epsilons), text)

        rows += _ours(data, epsilon, draws, seed, told)
        rows += _peers(data, epsilon, draws, seed, told, left_out)
    return experiment("peers", rows, left_out=left_out)


def _roles() -> dict[str, Schema]:
    """Everything private; the embedded schema, its label private or public; the label alone."""
    half = load_adult()[2]
    public = tuple(replace(column, role="public") for column in half.columns)
    return {
        "everything private": all_private(half),
        "half of the columns public": half,
        "half of the columns and the label public": Schema(
            replace(half.label, role="public"), half.columns
        ),
        "only the label private": Schema(half.label, public),
    }


def _scored(
    method: str, found: list[dict[str, Any]], epsilon: float, relation: str, **more: Any
) -> list[dict[str, Any]]:
    return [
        result_row(method, metric, [e[metric] for e in found], epsilon, DELTA, relation, **more)
        for metric in _METRICS
    ]


def _ours(
    data: Path | None, epsilon: float, draws: int, seed: int, tell: Progress
) -> list[dict[str, Any]]:
    rows = []
    for place, (roles, schema) in enumerate(_roles().items()):
        tell(0.1 * place, f"auto, {roles}")
        _, table, test = adult_tables(data, schema)
        assert test.label is not None
        found = [
            class_scores(test.label, model.probabilities(test))
            for model in models(table, epsilon, DELTA, draws=draws, seed=1000 * seed)
        ]
        rows += _scored("auto", found, epsilon, "replace", roles=roles)
    return rows


def _peers(
    data: Path | None,
    epsilon: float,
    draws: int,
    seed: int,
    tell: Progress,
    left_out: list[dict[str, str]],
) -> list[dict[str, Any]]:
    schema = all_private(load_adult()[2])
    _, table, test = adult_tables(data, schema)
    assert table.label is not None
    assert test.label is not None
    rows: list[dict[str, Any]] = []
    roles = "everything private"
    if ebm_class() is None:
        left_out.append({"method": "dp-ebm", "reason": "interpret-core is not installed"})
    else:
        train_frame, test_frame, _ = load_adult()
        for place, (name, variant) in enumerate(EBM_VARIANTS.items()):
            tell(0.4 + 0.1 * place, name)
            chances = [
                fit_ebm(
                    variant,
                    schema.columns,
                    train_frame,
                    table.label,
                    test_frame,
                    epsilon=epsilon,
                    delta=DELTA,
                    seed=1000 * seed + draw,
                )
                for draw in range(draws)
            ]
            found = [class_scores(test.label, np.column_stack([1 - p, p])) for p in chances]
            rows += _scored(name, found, epsilon, variant.relation, roles=roles)
    for place, (name, fit) in enumerate((("opacus", _opacus), ("diffprivlib", _diffprivlib))):
        tell(0.7 + 0.15 * place, name)
        try:
            found = [
                class_scores(test.label, fit(table, test, epsilon, 1000 * seed + draw))
                for draw in range(draws)
            ]
        except (ImportError, TypeError) as error:
            # Older releases of diffprivlib do not go with newer ones of scikit-learn.
            left_out.append({"method": name, "reason": f"it does not run here: {error}"})
            continue
        rows += _scored(name, found, epsilon, "add-remove", roles=roles)
    return rows


def _opacus(table: Table, test: Table, epsilon: float, seed: int) -> np.ndarray:
    """A logistic model by DP-SGD as Opacus has it; chances of the test rows."""
    generator = np.random.default_rng(seed)
    apart = generator.random(table.n) < 0.2
    assert table.label is not None
    X, y = table.private, table.label
    losses = {
        rate: class_scores(
            y[apart], _opacus_fit(X[~apart], y[~apart], X[apart], rate, epsilon, seed)
        )["log_loss"]
        or np.inf
        for rate in RATES
    }
    best = min(losses, key=lambda rate: losses[rate])
    return _opacus_fit(X, y, test.private, best, epsilon, seed)


def _opacus_fit(
    X: np.ndarray, y: np.ndarray, other: np.ndarray, rate: float, epsilon: float, seed: int
) -> np.ndarray:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    rows = TensorDataset(torch.from_numpy(X).float(), torch.from_numpy(y).long())
    model: Any = torch.nn.Linear(X.shape[1], 2)
    optimiser: Any = torch.optim.SGD(model.parameters(), lr=rate)
    with warnings.catch_warnings(action="ignore"):
        model, optimiser, loader = PrivacyEngine().make_private_with_epsilon(
            module=model,
            optimizer=optimiser,
            data_loader=DataLoader(rows, batch_size=_BATCH),
            target_epsilon=epsilon,
            target_delta=DELTA,
            epochs=_EPOCHS,
            max_grad_norm=1.0,
        )
        for _ in range(_EPOCHS):
            for batch, label in loader:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(batch), label).backward()
                optimiser.step()
    with torch.no_grad():
        scores = model(torch.from_numpy(other).float()).double()
        chances: np.ndarray = torch.softmax(scores, 1).numpy()
    return chances


def _diffprivlib(table: Table, test: Table, epsilon: float, seed: int) -> np.ndarray:
    """Its logistic regression by objective perturbation (no delta); chances of the test rows."""
    from diffprivlib.models import LogisticRegression

    model = LogisticRegression(
        epsilon=epsilon, data_norm=table.private_norm, max_iter=500, random_state=seed
    )
    with warnings.catch_warnings(action="ignore"):
        model.fit(table.private, table.label)
    chances: np.ndarray = model.predict_proba(test.private)
    return chances
