"""One configuration per method and recipe: the same object from Python, from words, from a file."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.ledger import MemoryLedger
from halfmask.cli import main
from halfmask.errors import InputError
from halfmask.estimators import HalfmaskClassifier
from halfmask.methods.gd import GdConfig
from halfmask.methods.label_span import LabelSpanConfig
from halfmask.methods.one_shot import OneShotConfig
from halfmask.methods.sgd import DpSgdConfig, SgdConfig
from halfmask.model import Model
from halfmask.schema import Column, Label, Schema
from halfmask.settings import (
    _KINDS,
    _hints,
    _kind_words,
    _nested,
    config_as_json,
    config_for,
    config_from_words,
    configs_for_methods,
    kind_of,
    options_from_json,
    options_to_json,
    read_config,
)

METHODS = ("one-shot", "gd", "sgd", "dp-sgd", "label-span", "experts", "admm", "fdml-sgd")
KINDS = [(method, recipe) for method in METHODS for recipe in _KINDS[method]]
SCHEMA = """
[label]
name = "ill"
role = "private"
classes = ["no", "yes"]
[columns.age]
role = "private"
kind = "number"
bounds = [0, 100]
[columns.town]
role = "public"
kind = "category"
"""


def settings_table(kind: type[Any]) -> list[tuple[str, str, str]]:
    """(name, values, default) of every setting, nested ones by their dotted names."""
    hints, rows = _hints(kind), []
    for each in fields(kind):
        hint = hints[each.name]
        if (inner := _nested(hint)) is not None:
            rows += [(f"{each.name}.{n}", v, d) for n, v, d in settings_table(inner)]
        else:
            default = None if each.default is MISSING else each.default
            word = str(default).lower() if isinstance(default, bool) else f"{default}"
            rows.append((each.name, _kind_words(hint), "none" if default is None else word))
    return rows


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(0, 100)},{rng.choice(['a', 'b'])},{rng.choice(['no', 'yes'])}"
        for _ in range(300)
    ]
    (tmp_path / "people.csv").write_text("\n".join(["age,town,ill", *rows]), encoding="utf-8")
    (tmp_path / "people.toml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def run(folder: Path, command: str, *words: str) -> Any:
    start = [command, str(folder / "people.csv"), "--schema", str(folder / "people.toml")]
    return CliRunner().invoke(main, [*start, "--epsilon", "1", "--json", *words])


def mistake(done: Any) -> str:
    assert done.exit_code == 2, done.output
    text: str = done.stderr
    return text


@pytest.mark.parametrize(("method", "recipe"), KINDS)
def test_words_of_every_default_make_the_default_configuration(method: str, recipe: str) -> None:
    kind = kind_of(method, recipe)
    rows = settings_table(kind)
    words = [f"{name}={default}" for name, what, default in rows if "Python" not in what]
    words += [f"recipe={recipe}"] if recipe else []
    assert config_from_words(method, words) == kind()
    assert config_as_json(kind()).keys() == {name.split(".")[0] for name, _, _ in rows}


@pytest.mark.parametrize(("method", "recipe"), KINDS)
def test_an_unknown_setting_is_answered_with_all_there_are(method: str, recipe: str) -> None:
    names = [name for name, _, _ in settings_table(kind_of(method, recipe))]
    own = {"recipe": recipe} if recipe else {}
    for wrong in (
        lambda: config_from_words(method, ["stpes=3"], dict(own)),
        lambda: config_from_words(method, [], {"stpes": 3, **own}),
        lambda: config_for(method, {"stpes": 3, **own}),
    ):
        with pytest.raises(InputError, match="stpes") as caught:
            wrong()
        assert all(name in str(caught.value) for name in names)


@settings(deadline=None)
@given(
    steps=st.integers(1, 10**6),
    radius=st.floats(1e-3, 1e6),
    loss=st.sampled_from(["none", "logistic"]),
    start=st.booleans(),
)
def test_words_files_and_python_make_the_same_object(
    steps: int, radius: float, loss: str, start: bool
) -> None:
    asked = GdConfig(
        steps=steps, radius=radius, loss=None if loss == "none" else "logistic", public_start=start
    )
    words = [f"steps={steps}", f"radius={radius!r}", f"loss={loss}", f"public_start={start}"]
    assert config_from_words("gd", words) == asked
    told: dict[str, Any] = {"steps": steps, "radius": radius, "public_start": start}
    assert config_from_words("gd", [f"loss={loss}"], told) == asked
    assert config_for("gd", {**told, "loss": asked.loss}) == asked
    assert config_for("gd", {"config": GdConfig(steps=steps), **told, "loss": asked.loss}) == asked


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("steps=many", "a whole number"),
        ("steps=1.5", "a whole number"),
        ("radius=wide", "a number"),
        ("public_start=maybe", "true or false"),
        ("aggregate=median", "last, average, tail"),
        ("penalty=mine", "from Python only"),
    ],
)
def test_a_value_of_another_type_is_told_what_is_expected(word: str, wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        config_from_words("gd", [word])


def test_fractions_repeats_and_words_without_a_value() -> None:
    assert config_from_words("sgd", ["rate=1/16"]) == SgdConfig(rate=1 / 16)
    assert config_from_words("sgd", []) is None
    with pytest.raises(InputError, match="twice"):
        config_from_words("sgd", ["steps=1", "steps=2"])
    with pytest.raises(InputError, match="NAME=VALUE"):
        config_from_words("sgd", ["steps"])
    with pytest.raises(InputError, match="has no recipe 'best': expected none"):
        config_from_words("sgd", ["recipe=best"])
    with pytest.raises(InputError, match="has no recipe 'best': expected default, lecture"):
        config_from_words("gd", ["recipe=best"])


def test_what_a_recipe_does_not_have_is_an_error_that_names_the_recipe() -> None:
    pytest.importorskip("torch")
    from halfmask.neural.config import Algorithm1Config, MlpConfig, StepsConfig

    made = config_from_words("mlp", ["recipe=algorithm-1", "padding=zero", "alpha=2", "steps=7"])
    assert made == Algorithm1Config(padding="zero", alpha=2.0, steps=7)
    with pytest.raises(InputError, match="'dp-sgd' has no setting 'padding'"):
        config_from_words("mlp", ["recipe=dp-sgd", "padding=zero"])
    with pytest.raises(InputError, match="'default' has no setting 'steps'"):
        config_from_words("mlp", ["steps=7"])
    with pytest.raises(InputError, match=r"default, algorithm-1, dp-sgd"):
        config_from_words("mlp", ["recipe=best"])
    nested = config_from_words("mlp", ["warm_start.steps=7"], {"warm_start": {"rate": 0.5}})
    assert nested == MlpConfig(warm_start=StepsConfig(steps=7, rate=0.5))
    with pytest.raises(InputError, match="name one of its settings"):
        config_from_words("mlp", ["warm_start=7"])
    rows = settings_table(MlpConfig)
    assert ("warm_start.momentum", "a number", "0.9") in rows


def test_a_file_has_a_table_per_method_or_the_settings_of_one(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[gd]\nsteps = 4\n[sgd]\nrate = 0.5\n", encoding="utf-8")
    assert config_from_words("gd", [], read_config(file, "gd")) == GdConfig(steps=4)
    assert read_config(file, "one-shot") == {}
    both = configs_for_methods(["gd", "sgd", "auto"], ["gd.radius=2"], file)
    assert both == {"gd": GdConfig(steps=4, radius=2.0), "sgd": SgdConfig(rate=0.5)}
    with pytest.raises(InputError, match=r"METHOD\.NAME=VALUE"):
        configs_for_methods(["gd"], ["steps=3"], None)
    with pytest.raises(InputError, match="'sgd'"):
        configs_for_methods(["gd"], [], file)
    file.write_text("steps = 5\n", encoding="utf-8")
    assert config_from_words("gd", ["steps=6"], read_config(file, "gd")) == GdConfig(steps=6)
    file.write_text("steps = \n", encoding="utf-8")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(file, "gd")


@pytest.mark.parametrize(
    "config",
    [
        GdConfig(steps=3),
        SgdConfig(steps=3, rate=0.5, momentum=0.5, schedule="cosine", aggregate="ema", alpha=2.0),
        DpSgdConfig(steps=3, rate=0.5, schedule="linear"),
        OneShotConfig(whiten=0.5),
    ],
)
def test_a_configuration_is_a_method_in_python(config: Any) -> None:
    schema = Schema(
        Label("ill", "private", classes=("no", "yes")),
        (Column("age", "private", "number", bounds=(0, 100)), Column("old", "public", "number")),
    )
    rng = np.random.default_rng(1)
    frame = {
        "age": rng.integers(0, 100, 200),
        "old": rng.random(200),
        "ill": rng.choice(["no", "yes"], 200),
    }
    import pyarrow as pa

    model = HalfmaskClassifier(schema, method=config, epsilon=1.0).fit(pa.table(frame))
    assert model.method_ == config.method
    assert model.model_.options == {"config": config}
    if hasattr(config, "steps"):
        assert model.model_.details["steps"] <= 3
    stored = options_to_json(model.model_.options)
    assert stored is not None
    assert options_from_json(stored) == {"config": config}
    by_name = HalfmaskClassifier(
        schema, method=config.method, options=config_as_json(config), epsilon=1.0
    )
    assert by_name.fit(pa.table(frame)).model_.options == {"config": config}


def test_another_methods_configuration_is_refused_before_a_charge() -> None:
    budget = MemoryLedger(epsilon=1.0, delta=1e-6)
    X, y = np.zeros((20, 2)), np.arange(20) % 2
    for method, options in (("gd", {"config": LabelSpanConfig()}), ("additive", {"steps": 3})):
        model = HalfmaskClassifier(method=method, options=options, ledger=budget)
        with pytest.raises(InputError):
            model.fit(X, y)
    with pytest.raises(InputError, match="by name or its configuration"):
        HalfmaskClassifier(method=3, ledger=budget).fit(X, y)
    assert budget.events() == ()


def test_train_takes_settings_and_stores_them(people: Path) -> None:
    out = people / "model"
    done = run(people, "train", "--method", "gd", "--set", "steps=3", "--out", str(out))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["settings"]["steps"] == 3
    assert Model.load(out).options == {"config": GdConfig(steps=3)}
    (people / "gd.toml").write_text("[gd]\nsteps = 2\n", encoding="utf-8")
    words = ("--method", "gd", "--config", str(people / "gd.toml"), "--out", str(people / "two"))
    assert json.loads(run(people, "train", *words).stdout)["settings"]["steps"] == 2


def test_mistakes_in_settings_leave_no_folder_and_charge_nothing(people: Path) -> None:
    out = people / "model"
    assert "spread" in mistake(
        run(people, "train", "--method", "gd", "--set", "stpes=3", "--out", str(out))
    )
    assert "--method" in mistake(run(people, "train", "--set", "steps=3", "--out", str(out)))
    assert "no settings" in mistake(
        run(people, "train", "--method", "additive", "--set", "steps=3", "--out", str(out))
    )
    assert not out.exists()


def test_compare_takes_settings_by_method(people: Path) -> None:
    out = people / "both"
    words = ("--methods", "gd,one-shot", "--set", "gd.steps=3", "--out", str(out))
    done = run(people, "compare", *words)
    assert done.exit_code == 0, done.output
    assert Model.load(out / "gd").options == {"config": GdConfig(steps=3)}
    assert Model.load(out / "one-shot").options == {}
    wrong = run(
        people, "compare", "--methods", "gd", "--set", "steps=3", "--out", str(people / "x")
    )
    assert "METHOD.NAME=VALUE" in mistake(wrong)


@pytest.mark.parametrize(("method", "recipe"), [*KINDS, *(("mlp", each) for each in _KINDS["mlp"])])
def test_the_docs_list_every_setting_with_its_default(method: str, recipe: str) -> None:
    if method == "mlp":
        pytest.importorskip("torch")
    text = (Path(__file__).parent.parent / "docs" / "settings.md").read_text("utf-8")
    title = f"### Settings of `{method}`" + (f", `recipe={recipe}`" if recipe else "")
    section = text.split(title + "\n")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    rows = settings_table(kind_of(method, recipe))
    assert lines == [f"| `{name}` | {values} | {default} |" for name, values, default in rows]
