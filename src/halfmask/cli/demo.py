"""`halfmask demo`: the embedded Adult census under four role sets at one epsilon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from halfmask.cli.output import emit, json_option, note, reporting

NEXT = """Now your own file:
  halfmask init people.csv --label NAME > people.toml     # then mark roles, bounds, categories
  halfmask train people.csv --schema people.toml --epsilon 1 --out model/
  halfmask evaluate model/ test.csv"""


@click.command()
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The privacy budget.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Keep the half-masked model in this new folder (default: keep nothing).",
)
@json_option
def demo(epsilon: float, out: Path | None, as_json: bool) -> None:
    """Train on the embedded Adult census: all private, half masked, only the label private."""
    from sklearn.linear_model import LogisticRegression

    from halfmask.accounting.gaussian import check_epsilon
    from halfmask.experiments.adult_erm import accuracy, adult_tables
    from halfmask.experiments.adult_roles import role_sets
    from halfmask.mechanisms.noise import noise_source
    from halfmask.training import train

    check_epsilon(epsilon)
    started = time.perf_counter()
    delta = 1e-6
    names = ("all private", "half masked", "label private")
    rows: list[dict[str, Any]] = []
    kept = None
    with reporting("demo") as report:
        for place, (name, schema) in enumerate(zip(names, role_sets().values(), strict=True)):
            report(place / len(names), name)
            encoder, table, test = adult_tables(None, schema)
            if place == 0:
                plain = LogisticRegression(max_iter=1000).fit(table.private, table.label)
                score = float(plain.score(test.private, test.label))
                rows.append({"model": "not private", "accuracy": score, "epsilon": None})
            model = train(
                table,
                epsilon=epsilon,
                delta=delta,
                relation="replace",
                method="auto",
                noise=noise_source(),
                encoder=encoder,
            )
            rows.append(
                {
                    "model": name,
                    "accuracy": accuracy(model, test),
                    "epsilon": model.privacy.epsilon,
                    "delta": delta,
                    "relation": model.privacy.relation,
                    "method": model.method,
                    "public": list(model.privacy.public),
                    "private": [*model.privacy.private, "income"],
                }
            )
            kept = model if name == "half masked" else kept
    assert kept is not None
    if out is not None:
        kept.save(out)
        note(f"The half-masked model is in {out}.")
    seconds = time.perf_counter() - started
    result = {
        "rows": table.n,
        "models": rows,
        "privacy": kept.privacy.to_json(),
        "seconds": round(seconds, 1),
    }
    emit(result, _shown(rows, kept.privacy.text(), seconds), as_json)


def _shown(rows: list[dict[str, Any]], statement: str, seconds: float) -> object:
    from rich.console import Group
    from rich.table import Table

    table = Table(title="Adult census: does a person earn more than 50K? (32,561 rows)")
    for heading in ("model", "test accuracy", "guarantee (replace, delta 1e-6)", "private columns"):
        table.add_column(heading)
    for row in rows:
        promise = "none" if row["epsilon"] is None else f"epsilon {row['epsilon']:.4g}"
        private = ", ".join(row.get("private", ())) or "none"
        table.add_row(row["model"], f"{row['accuracy']:.4f}", promise, private)
    words = f"\nWhat the half-masked model promises:\n\n{statement}\n\n{NEXT}\n\n({seconds:.0f} s)"
    return Group(table, words)
