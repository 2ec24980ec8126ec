"""The command line: exit codes, clean JSON, errors instead of tracebacks, light imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from halfmask import cli
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import Ledger
from halfmask.cli import main, research
from halfmask.cli.output import bars, emit, json_option, note
from halfmask.errors import BudgetExceededError, ClaimRefutedError, DataError
from halfmask.progress import tell
from halfmask.storage import plain

# SOUNDNESS table, delta = 1e-5: q, noise, steps, then epsilon under withhold, replace and label
GOLDEN = [
    (1 / 16, 1, 16, 2.2423, 2.6803, 2.4148),
    (1 / 16, 1, 160, 5.4179, 8.0679, 6.7062),
    (1 / 16, 1, 320, 7.6275, 12.0869, 9.8791),
    (1 / 16, 1, 1600, 18.9115, 34.2134, 27.0152),
    (0.01, 1, 1000, 1.8282, 2.8434, 2.3958),
    (1 / 16, 2, 1600, 6.2461, 13.1539, 9.1559),
    (1, 20, 100, 1.9931, 4.3772, 2.9432),
]


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def result_of(*args: object) -> dict:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def refused(*args: object, code: int = 2) -> str:
    """Run a command that must fail cleanly, and return what it says."""
    for arguments in (args, (*args, "--json")):
        done = run(*arguments)
        assert done.exit_code == code, (done.exit_code, done.output)
        if "--json" in arguments:
            assert json.loads(done.stdout)["error"]["message"]
        else:
            assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert "Error: " in done.stderr
    return done.stderr


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"q={row[0]:g},noise={row[1]},T={row[2]}")
def test_account_matches_the_reference_and_is_never_below(row: tuple[float, ...]) -> None:
    q, noise, steps, *expected = row
    for relation, epsilon in zip(("withhold", "replace", "label"), expected, strict=True):
        found = result_of(
            "account", "--q", q, "--noise", noise, "--steps", steps, "--delta", 1e-5,
            "--relation", relation,
        )  # fmt: skip
        # The reference is printed to four decimals.
        assert epsilon - 5e-5 <= found["epsilon"] <= epsilon * 1.002
        assert found["relation"] == relation
        assert (found["q"], found["steps"], found["delta"]) == (q, steps, 1e-5)
        assert found["noise_multiplier"] == noise


@pytest.mark.parametrize("relation", ["replace", "withhold", "label"])
def test_account_finds_noise_and_steps_that_keep_the_target(relation: str) -> None:
    common = ("account", "--epsilon", 2, "--delta", 1e-5, "--relation", relation)
    found = result_of(*common, "--steps", 16)
    assert found["epsilon"] == 2
    assert 2 * 0.995 <= found["accounted_epsilon"] <= 2
    most = result_of(*common, "--noise", found["noise_multiplier"])
    assert most["steps"] == 16
    assert most["accounted_epsilon"] <= 2


@pytest.mark.parametrize("epsilon", [0.3, 1, 2, 7])
def test_noise_that_account_prints_keeps_the_target(epsilon: float) -> None:
    common = ("account", "--steps", "20", "--delta", "1e-5")
    told = CliRunner().invoke(main, [*common, "--epsilon", str(epsilon)]).output.splitlines()[0]
    assert result_of(*common, "--noise", told.split()[-1])["epsilon"] <= epsilon


def test_account_finds_noise_for_sampled_steps() -> None:
    options = ("--q", 0.0625, "--steps", 16, "--delta", 1e-5, "--epsilon", 2.68)
    found = result_of("account", *options)
    assert found["noise_multiplier"] == pytest.approx(1.0, rel=2e-3)
    assert 2.68 * 0.995 <= found["accounted_epsilon"] <= 2.68


def test_account_without_sampling_is_the_closed_form() -> None:
    from halfmask.accounting.gaussian import gaussian_epsilon

    found = result_of("account", "--noise", 10, "--steps", 1, "--delta", 1e-6)
    assert found["q"] == 1
    assert found["epsilon"] == pytest.approx(gaussian_epsilon(0.2, 1e-6), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epsilon", "0", "--steps", "1", "--delta", "1e-5"], "--epsilon > 0, got 0"),
        (["--epsilon", "-1", "--steps", "1", "--delta", "1e-5"], "--epsilon > 0, got -1"),
        (["--epsilon", "nan", "--steps", "1", "--delta", "1e-5"], "--epsilon > 0, got nan"),
        (["--noise", "0", "--steps", "1", "--delta", "1e-5"], "--noise > 0, got 0"),
        (["--noise", "inf", "--steps", "1", "--delta", "1e-5"], "--noise > 0, got inf"),
        (["--noise", "1", "--steps", "1", "--delta", "1"], "--delta strictly between"),
        (["--noise", "1", "--steps", "1", "--delta", "0"], "--delta strictly between"),
        (["--noise", "1", "--steps", "1", "--delta", "nan"], "--delta strictly between"),
        (["--noise", "1", "--steps", "0", "--delta", "1e-5"], "--steps >= 1, got 0"),
        (["--noise", "1", "--steps", "1", "--delta", "1e-5", "--q", "0"], "--q in (0, 1]"),
        (["--noise", "1", "--steps", "1", "--delta", "1e-5", "--q", "1.5"], "--q in (0, 1]"),
        (["--noise", "1", "--delta", "1e-5"], "Give two of --noise, --steps and --epsilon"),
        (["--delta", "1e-5"], "none of them"),
        (["--noise", "1", "--steps", "1", "--epsilon", "1", "--delta", "1e-5"], "Give two of"),
        (["--noise", "0.1", "--epsilon", "1", "--delta", "1e-5"], "Not even one step"),
        (["--noise", "1", "--steps", "1"], "--delta"),
        (["--noise", "one", "--steps", "1", "--delta", "1e-5"], "--noise"),
        (["--noise", "1", "--steps", "1", "--delta", "1e-5", "--relation", "swap"], "withhold"),
    ],
)
def test_account_explains_impossible_options(options: list[str], words: str) -> None:
    assert words in refused("account", *options)


def test_ledger_create_show_and_verify(tmp_path: Path) -> None:
    file = tmp_path / "people.ledger"
    made = result_of("ledger", "create", file, "--epsilon", 1, "--delta", 1e-6)
    assert (made["epsilon"], made["delta"], made["relation"]) == (1.0, 1e-6, "replace")
    Ledger.open(file).charge([GaussianEvent(replace=0.1, withhold=0.05)], "class sums")
    shown = result_of("ledger", "show", file)
    assert shown["entries"][0]["what"] == "class sums"
    assert 0 < shown["spent"] < 1
    assert shown["left"] > 1 - shown["spent"], "charges compose"
    verified = result_of("ledger", "verify", file)
    assert verified["valid"] is True
    assert verified["charges"] == 1
    assert "class sums: 1 Gaussian release" in run("ledger", "show", file).stdout
    assert "intact, 1 charge\n" in run("ledger", "verify", file).stdout


def test_ledger_verify_reports_interrupted_charges(tmp_path: Path) -> None:
    file = tmp_path / "l"
    run("ledger", "create", file, "--epsilon", 1, "--delta", 1e-6)
    with file.open("ab") as torn:
        torn.write(b'{"seq":1,"ti')
    assert result_of("ledger", "verify", file)["torn_bytes"] == 12
    assert "nothing was released" in run("ledger", "verify", file).stdout


def test_a_ledger_that_is_not_found_is_looked_for_before_a_new_one_is_made(tmp_path: Path) -> None:
    create = ("ledger", "create", tmp_path / "none" / "l", "--epsilon", 1, "--delta", 1e-6)
    assert "Create it first" in refused(*create)
    for command in ("show", "verify"):
        elsewhere = refused("ledger", command, tmp_path / "none" / "l")
        assert "folder of l does not exist. Check the path." in elsewhere
        assert "There is no ledger l. Check the path" in refused("ledger", command, tmp_path / "l")
        assert "ledger.jsonl" in refused("ledger", command, tmp_path)


def test_ledger_commands_refuse_what_is_no_ledger(tmp_path: Path) -> None:
    file = tmp_path / "l"
    assert "no ledger l" in refused("ledger", "show", file)
    assert "epsilon > 0" in refused("ledger", "create", file, "--epsilon", 0, "--delta", 1e-6)
    run("ledger", "create", file, "--epsilon", 1, "--delta", 1e-6)
    assert "exists already" in refused("ledger", "create", file, "--epsilon", 1, "--delta", 1e-6)
    file.write_bytes(file.read_bytes().replace(b'"epsilon":1.0', b'"epsilon":9.0'))
    assert "line 1, was edited" in refused("ledger", "verify", file)
    file.write_text("age,income\n")
    assert "is not a ledger" in refused("ledger", "show", file)
    assert "regular file" in refused("ledger", "show", "/dev/null")


def add_command(monkeypatch: pytest.MonkeyPatch, body: object) -> None:
    """Make `halfmask probe` run `body`."""

    @click.command()
    @json_option
    def probe(*, as_json: bool) -> None:
        body(as_json)  # type: ignore[operator]

    monkeypatch.setattr(cli, "probe", probe, raising=False)
    monkeypatch.setitem(cli.COMMANDS, "probe", ("halfmask.cli:probe", "A probe."))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DataError("row 3 of column age"), 2, "Error: row 3 of column age"),
        (BudgetExceededError("too much"), 3, "Error: too much"),
        (ClaimRefutedError("refuted"), 4, "Error: refuted"),
        (FileNotFoundError(2, "No such file or directory", "x.csv"), 2, "Error: x.csv: No such"),
        (click.ClickException("plain"), 2, "Error: plain"),
        (click.UsageError("usage"), 2, "Error: usage"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "halfmask[torch]"),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (click.Abort(), 130, "Interrupted."),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_every_error_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(as_json: bool) -> None:
        raise error

    add_command(monkeypatch, fail)
    for arguments in (["probe"], ["probe", "--json"]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == code
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        if code == 141 or "--json" not in arguments:
            assert done.stdout == ""
            continue
        told = json.loads(done.stdout)["error"]
        assert set(told) == {"kind", "message", "column", "row"}
        assert told["message"] in done.stderr.replace("Error: ", "")


def test_an_error_names_its_column_and_row_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(as_json: bool) -> None:
        raise DataError("Column 'it\\'s', row 7: not a number. Correct it.")

    add_command(monkeypatch, fail)
    done = CliRunner().invoke(main, ["probe", "--json"])
    told = json.loads(done.stdout)["error"]
    assert (told["kind"], told["column"], told["row"]) == ("data", "it's", 7)


def test_an_error_after_the_result_leaves_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(as_json: bool) -> None:
        emit({"a": 1}, "words", as_json)
        raise ClaimRefutedError("refuted")

    add_command(monkeypatch, late)
    for _ in range(2):
        done = CliRunner().invoke(main, ["probe", "--json"])
        assert json.loads(done.stdout) == {"a": 1}
        assert done.exit_code == 4


def test_a_defect_is_an_object_that_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    add_command(monkeypatch, lambda as_json: float("Smith"))
    done = CliRunner().invoke(main, ["probe", "--json"])
    assert json.loads(done.stdout)["error"]["kind"] == "defect"
    assert "Smith" not in done.output


def test_a_defect_names_its_place_and_never_quotes_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(as_json: bool) -> None:
        plain(float("Smith"))

    add_command(monkeypatch, fail)
    done = CliRunner().invoke(main, ["probe"])
    assert done.exit_code == 1
    assert "Unexpected ValueError at " in done.stderr
    assert "Smith" not in done.output
    monkeypatch.setenv("HALFMASK_DEBUG", "1")
    assert isinstance(CliRunner().invoke(main, ["probe"]).exception, ValueError)


def test_json_is_one_object_whatever_is_printed_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(as_json: bool) -> None:
        print("a library talks")
        note("prose")
        emit({"a": np.float64("nan"), "b": np.arange(2), "c": (1, float("inf"))}, "words", as_json)
        print("and talks")

    add_command(monkeypatch, noisy)
    done = CliRunner().invoke(main, ["probe", "--json"])
    assert json.loads(done.stdout) == {"a": None, "b": [0, 1], "c": [1, None]}
    assert "NaN" not in done.stdout
    assert "a library talks" in done.stderr
    shown = CliRunner().invoke(main, ["probe"])
    assert "words" in shown.stdout
    assert "prose" not in shown.stdout


def test_emit_shows_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.table import Table

    table = Table("method", "accuracy")
    table.add_row("gd", "0.8")
    add_command(monkeypatch, lambda as_json: emit({}, table, as_json))
    assert "accuracy" in CliRunner().invoke(main, ["probe"]).stdout


def test_plain_refuses_what_json_does_not_know() -> None:
    assert plain({1: Path("a"), "t": np.bool_(True), "n": np.int64(3)}) == {
        "1": "a",
        "t": True,
        "n": 3,
    }
    with pytest.raises(TypeError, match="object"):
        plain(object())


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(True):
        tell("steps", 1 / 3)
        tell("steps", 1.0)
    assert capsys.readouterr() == ("", "")


def test_progress_shows_a_bar_on_a_terminal() -> None:
    import pty

    program = (
        "from halfmask.cli.output import bars\n"
        "from halfmask.progress import tell\n"
        "with bars(True):\n    tell('training', 1 / 3); tell('training', 1.0)\n"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    assert done.returncode == 0
    assert done.stdout == b""
    assert b"training" in os.read(ours, 65536)
    os.close(ours)


def test_help_lists_only_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "absent", ("halfmask.cli.absent:absent", "Is not there."))
    shown = run("--help")
    assert shown.exit_code == 0
    assert "account" in shown.stdout
    assert "ledger" in shown.stdout
    assert "absent" not in shown.stdout
    assert "No such command 'absent'" in run("absent").stderr
    assert run("absent").exit_code == 2


def test_every_listed_command_has_help_and_takes_json() -> None:
    context = click.Context(main)

    def leaves(command: click.Command) -> list[click.Command]:
        if isinstance(command, click.Group):
            return [leaf for child in command.commands.values() for leaf in leaves(child)]
        return [command]

    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert run(name, "--help").exit_code == 0
        for leaf in leaves(command):
            assert leaf.help, leaf.name
            assert any("--json" in parameter.opts for parameter in leaf.params), leaf.name


def test_version_is_printed() -> None:
    import halfmask

    assert run("--version").stdout == f"halfmask {halfmask.__version__}\n"


def loaded_by(*arguments: str) -> set[str]:
    program = (
        "import sys\nfrom halfmask.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_help_loads_no_heavy_package(tmp_path: Path) -> None:
    heavy = {"torch", "dp_accounting", "sklearn", "pandas", "scipy", "numpy", "pyarrow", "flwr"}
    assert not heavy & loaded_by("--help")
    assert not heavy & loaded_by("account", "--help")
    file = tmp_path / "people.csv"
    file.write_text("age,income\n30,yes\n40,no\n")
    if "init" in main.list_commands(click.Context(main)):
        loaded = loaded_by("init", str(file), "--label", "income")
        assert not {"torch", "dp_accounting", "sklearn", "pandas"} & loaded


def test_a_reader_that_leaves_the_pipe_gets_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "l"
    Ledger.create(file, epsilon=1.0, delta=1e-6)
    read, write = os.pipe()
    os.close(read)
    program = "from halfmask.cli import main; main()"
    command = [sys.executable, "-c", program, "ledger", "verify", str(file)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


def test_ctrl_c_ends_a_real_process_with_130() -> None:
    program = (
        "import click, time, halfmask.cli as cli\n"
        "@click.command()\ndef probe():\n    print('ready', flush=True); time.sleep(60)\n"
        "cli.probe = probe\ncli.COMMANDS['probe'] = ('halfmask.cli:probe', '')\n"
        "cli.main(['probe'])"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert errors.strip() == "Interrupted."


@pytest.mark.parametrize("command", ["reproduce", "bench"])
def test_names_of_experiments_stand_whole_in_the_help(command: str) -> None:
    names = research.EXPERIMENTS if command == "reproduce" else research.BENCHES
    usage, *lines = run(command, "--help").stdout.splitlines()
    assert usage.endswith(f"{command} [OPTIONS] NAME")
    told = " ".join(lines).split("NAME is one of ")[1]
    assert " ".join(told.split()) == f"{', '.join(names)}."
    assert "Invalid value for 'NAME'" in refused(command, "nothing-like-it")
