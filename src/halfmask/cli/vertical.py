"""`halfmask vertical`: columns held by different organisations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.accounting.budget import printed
from halfmask.accounting.relations import RELATIONS
from halfmask.cli.options import settings_options
from halfmask.cli.output import emit, json_option
from halfmask.cli.vertical_network import join, serve
from halfmask.cli.vertical_predict import named_files, predict
from halfmask.errors import InputError

if TYPE_CHECKING:
    from halfmask.schema import Schema
    from halfmask.vertical.settings import SgdSharingConfig, SharingConfig
    from halfmask.vertical.simulation import Simulation
    from halfmask.vertical.task import Budget, Task

METHODS = ("experts", "admm", "fdml-sgd")
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group()
def vertical() -> None:
    """Train over columns that different parties hold for the same rows."""


vertical.add_command(serve)
vertical.add_command(join)
vertical.add_command(predict)


@vertical.command()
@click.option(
    "--schema", "schema_file", type=FILE, required=True, help="Names each column's party."
)
@click.option("--label", "label_file", type=FILE, required=True, help="File with ids and labels.")
@click.option("--party", "parties", multiple=True, required=True, metavar="NAME=FILE")
@click.option("--id", "id_column", required=True, help="The column of ids in every file.")
@click.option("--method", type=click.Choice(METHODS), default="experts", show_default=True)
@settings_options("NAME")
@click.option(
    "--combine",
    type=click.Choice(("fixed", "aggregate")),
    help="How experts are added: a fixed rule, or weights from DP counts of each one's scores.",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="For each party.")
@click.option("--delta", type=float, default=1e-6, show_default=True)
@click.option("--relation", type=click.Choice(RELATIONS), default="replace", show_default=True)
@click.option("--test-label", "test_label_file", type=FILE)
@click.option("--test-party", "test_parties", multiple=True, metavar="NAME=FILE")
@click.option(
    "--noise",
    type=click.Choice(("row", "column", "as-written", "none")),
    help="How admm and fdml-sgd protect what is sent (default: row); the last two have no epsilon.",
)
@click.option("--noise-std", type=float, help="For --noise as-written.")
@click.option("--rounds", type=int, help="Rounds of admm, epochs of fdml-sgd.")
@click.option("--rho", type=float, help="Penalty of admm.")
@click.option("--update", type=click.Choice(("sharing", "as-written")), help="Of admm.")
@click.option("--hide-labels", type=float, metavar="EPSILON", help="Randomise labels first.")
@click.option("--ledger", "ledgers", multiple=True, metavar="NAME=FILE", help="A party's budget.")
@click.option("--label-ledger", type=FILE, help="The label holder's budget.")
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the model.")
@click.option("--unsafe-seed", type=int, help="Reproducible noise: not private.")
@json_option
def simulate(
    schema_file: Path,
    label_file: Path,
    parties: tuple[str, ...],
    id_column: str,
    method: str,
    settings: tuple[str, ...],
    config_file: Path | None,
    combine: str | None,
    epsilon: float,
    delta: float,
    relation: str,
    test_label_file: Path | None,
    test_parties: tuple[str, ...],
    noise: str | None,
    noise_std: float | None,
    rounds: int | None,
    rho: float | None,
    update: str | None,
    hide_labels: float | None,
    ledgers: tuple[str, ...],
    label_ledger: Path | None,
    out: Path | None,
    unsafe_seed: int | None,
    as_json: bool,
) -> None:
    """Run all parties in this process, as they would run apart."""
    from halfmask.accounting.ledger import Ledger
    from halfmask.accounting.relations import check_relation
    from halfmask.schema import Schema
    from halfmask.settings import config_as_json
    from halfmask.vertical.files import read_task
    from halfmask.vertical.statements import party_statements
    from halfmask.vertical.task import Budget

    shortcuts = {
        "combine": combine,
        "noise": noise,
        "noise_std": noise_std,
        "epochs" if method == "fdml-sgd" else "rounds": rounds,
        "rho": rho,
        "update": update,
    }
    config = _config(method, settings, config_file, shortcuts)
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{str(out)!r} exists already: name a new folder with --out.")
    schema = Schema.from_toml(schema_file)
    task = read_task(
        schema,
        id_column=id_column,
        label_file=label_file,
        party_files=named_files(parties, "--party"),
        test_label_file=test_label_file,
        test_party_files=named_files(test_parties, "--test-party"),
    )
    checked = check_relation(relation)
    budget = Budget(
        epsilon=epsilon,
        delta=delta,
        relation=checked,
        unsafe_seed=unsafe_seed,
        ledgers={
            name: Ledger.open(file) for name, file in named_files(ledgers, "--ledger").items()
        },
        label_ledger=None if label_ledger is None else Ledger.open(label_ledger),
    )
    label_private = schema.label.role == "private"
    if method == "experts":
        from halfmask.vertical.simulation import simulate_experts

        simulation = simulate_experts(
            task,
            budget=budget,
            label_private=label_private,
            label_epsilon=hide_labels,
            config=config.newton,
            damping=config.damping,
            aggregate=config.combine == "aggregate",
        )
    elif method == "admm":
        simulation = _admm(task, budget, config, hide_labels)
    else:
        simulation = _fdml(task, budget, config, hide_labels)
    statements = party_statements(
        simulation,
        task.columns,
        delta=delta,
        relation=checked,
        label=schema.label.name,
        label_private=label_private and method == "experts" and hide_labels is None,
        label_hidden=hide_labels is not None,
        noise=getattr(config, "noise", "row"),
    )
    if out is not None:
        _keep(out, simulation, task, schema, id_column, statements, config)
    data = {
        "model": None if out is None else str(out),
        "method": method,
        "rounds": simulation.rounds,
        "settings": config_as_json(config),
        "parties": list(simulation.parties),
        "privacy": statements,
        "costs": dict(simulation.costs),
        "traffic": dict(simulation.traffic),
        "train_loss": simulation.train_loss,
        "test_loss": simulation.test_loss,
        **{name: simulation.history[-1].get(name) for name in simulation.errors},
        "history": [dict(record) for record in simulation.history],
    }
    emit(data, _text(simulation, statements), as_json)


def _config(
    method: str,
    settings: tuple[str, ...],
    file: Path | None,
    shortcuts: Mapping[str, str | float | None],
) -> Any:
    """The method's configuration: --config, then --set; other options are words for the same."""
    from halfmask.settings import config_from_words, kind_of, read_config

    told = [f"{name}={value}" for name, value in shortcuts.items() if value is not None]
    tables = None if file is None else read_config(file, method)
    return config_from_words(method, [*told, *settings], tables) or kind_of(method)()


def _admm(
    task: Task, budget: Budget, config: SharingConfig, label_epsilon: float | None
) -> Simulation:
    from halfmask.vertical.simulation import simulate_admm

    return simulate_admm(
        task,
        config.admm,
        strength=config.chosen_strength,
        regulariser=config.regulariser,
        constraint=config.chosen_constraint,
        noise=config.share_noise,
        budget=budget,
        label_epsilon=label_epsilon,
    )


def _fdml(
    task: Task, budget: Budget, config: SgdSharingConfig, label_epsilon: float | None
) -> Simulation:
    from halfmask.vertical.simulation import simulate_fdml

    if label_epsilon is not None:
        raise InputError("fdml-sgd does not know --hide-labels: use admm.")
    return simulate_fdml(
        task,
        config.sgd,
        strength=config.strength,
        noise=config.fdml_noise,
        budget=budget,
        start_seed=config.start_seed,
    )


def _keep(
    out: Path,
    simulation: Simulation,
    task: Task,
    schema: Schema,
    id_column: str,
    statements: dict[str, dict[str, Any]],
    config: Any,
) -> None:
    """The parts of all parties, and then the label holder's file, which makes it a model."""
    from halfmask.settings import config_as_json
    from halfmask.vertical.part import Part, VerticalModel

    assert simulation.combination is not None
    kind = getattr(config, "noise", "row")
    # Exact coefficients under noisy shares are outside the guarantee (docs/proofs/queries.md).
    covered = not (simulation.method == "admm" and kind in ("row", "column"))
    for part in task.columns:
        assert part.encoder is not None
        Part(
            party=part.name,
            method=simulation.method,
            run=simulation.run,
            encoder=part.encoder,
            coefficients=simulation.coefficients[part.name],
            covered=covered,
            statement=statements[part.name],
        ).save(out / "parties" / part.name)
    VerticalModel(
        method=simulation.method,
        run=simulation.run,
        weights=dict(zip(simulation.parties, simulation.combination.weights, strict=True)),
        intercept=simulation.combination.intercept,
        rule=simulation.combination.rule,
        label=schema.label.name,
        classes=schema.label.classes,
        id=id_column,
        privacy=statements,
        details={
            "rounds": simulation.rounds,
            "costs": dict(simulation.costs),
            "settings": config_as_json(config),
        },
        label_bounds=schema.label.bounds,
    ).save(out)


def _text(simulation: Simulation, statements: dict[str, dict[str, Any]]) -> object:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"{simulation.method}, {simulation.rounds} rounds")
    for heading in ("party", "private columns", "epsilon", "relation"):
        table.add_column(heading)
    for name, statement in statements.items():
        epsilon = statement["epsilon"]
        table.add_row(
            name,
            str(len(statement["private"])),
            "none" if epsilon is None else printed(epsilon),
            str(statement["relation"]),
        )
    lines = [f"train loss {simulation.train_loss:.4f} (not covered by the guarantee)"]
    if simulation.test_loss is not None:
        lines.append(f"test loss  {simulation.test_loss:.4f}")
    for name in simulation.errors:
        lines.append(f"{name.replace('_', ' ')} {simulation.history[-1][name]:.4f}")
    per_round = simulation.traffic
    lines.append(
        f"{per_round['messages_per_round']:g} messages and {per_round['bytes_per_round']:,.0f} "
        "bytes of numbers a round"
    )
    first = next(iter(statements.values()))
    lines += [*first.get("notes", []), "Not covered:"]
    lines += [f"- {line}" for line in first["not_covered"]]
    return Group(table, *lines)
