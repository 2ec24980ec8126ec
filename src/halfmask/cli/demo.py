"""`halfmask demo`: the embedded Adult census under four role sets at one epsilon."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.events import check_epsilon
from halfmask.cli.output import emit, grid, json_option, reporting
from halfmask.progress import part_of
from halfmask.storage import write_text

NEXT = """Now your own file:
  halfmask init people.csv --label NAME > people.toml     # then mark roles, bounds, categories
  halfmask train people.csv --schema people.toml --epsilon 1 --out model/
  halfmask evaluate model/ test.csv
  halfmask report model/ --out report.html"""

_AUDIT_RUNS = 4000


@click.command()
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The privacy budget.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("halfmask-demo"),
    show_default=True,
    help="Where the half-masked model and its report go.",
)
@json_option
def demo(epsilon: float, out: Path, as_json: bool) -> None:
    """Train on the embedded Adult census: all private, half masked, only the label private."""
    from sklearn.linear_model import LogisticRegression

    from halfmask.audit.catalogue import game_named
    from halfmask.audit.distinguish import distinguish
    from halfmask.datasets import adult_roles, adult_tables
    from halfmask.mechanisms.noise import noise_source
    from halfmask.scoring import scores
    from halfmask.training import train, whole_seconds

    check_epsilon(epsilon)
    started = time.perf_counter()
    delta = 1e-6
    names = ("all private", "half masked", "label private")
    rows: list[dict[str, Any]] = []
    kept = None
    with reporting("demo") as report:
        for place, (name, schema) in enumerate(zip(names, adult_roles().values(), strict=True)):
            report(place / 4, name)
            encoder, table, test = adult_tables(None, schema)
            if place == 0:
                plain = LogisticRegression(max_iter=1000).fit(table.private, table.label)
                score = float(plain.score(test.private, test.label))
                rows.append({"model": "not private", "accuracy": score, "epsilon": None})
            with part_of("demo", place / 4, (place + 1) / 4):
                model = train(
                    table,
                    Budget(epsilon=epsilon, delta=delta),
                    method="auto",
                    noise=noise_source(),
                    encoder=encoder,
                )
            rows.append(
                {
                    "model": name,
                    "accuracy": scores(model, test)["accuracy"],
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
        kept.save(out, overwrite=True)
        report(0.8, "audit")
        game = game_named("gd", epsilon=epsilon, delta=1e-5, relation="replace")
        finding = distinguish(game, confidence=0.95, runs=_AUDIT_RUNS)
        report(0.9, "report")
        page = written_report(out)
    seconds = whole_seconds(started)
    result = {
        "rows": table.n,
        "models": rows,
        "privacy": kept.privacy.to_json(),
        "audit": finding.to_json(),
        "report": str(page),
        "seconds": seconds,
    }
    words = f"""
What the half-masked model promises:

{kept.privacy.text()}

An attack on the method it was trained by:

{finding.text()}

The model and its report are in {out}: open {page}.

{NEXT}

({seconds} s)"""
    emit(result, _table(rows), as_json)
    if not as_json:
        click.echo(words)


def written_report(folder: Path) -> Path:
    """The model's page or, where figures cannot be drawn, the same as Markdown."""
    if find_spec("matplotlib") is not None:
        from halfmask.report.html import write_report

        write_report(folder, folder / "report.html")
        return folder / "report.html"
    from halfmask.report.card import markdown
    from halfmask.report.facts import gather

    text = markdown(gather(folder, with_effects=False))
    write_text(folder / "report.md", text)
    return folder / "report.md"


def _table(rows: list[dict[str, Any]]) -> object:
    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        promise = "none" if row["epsilon"] is None else f"epsilon {printed(row['epsilon'])}"
        names = row.get("private", ["none"])
        private = ", ".join(names) if len(names) < 10 else f"all {len(names) - 1}, and {names[-1]}"
        return row["model"], f"{row['accuracy']:.4f}", promise, private

    title = "Adult census: does a person earn more than 50K? (32,561 rows)"
    headings = ("model", "test accuracy", "guarantee (replace, delta 1e-6)", "private columns")
    return grid(title, headings, map(cells, rows))
