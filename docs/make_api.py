"""The API reference, from docstrings: python docs/make_api.py writes docs/api.md.

Docstrings have scikit-learn's form: a sentence, then Parameters, Attributes, Returns and Examples.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = {
    "Estimators": ["halfmask:HalfmaskClassifier", "halfmask:HalfmaskRegressor"],
    "Declaring a table": [
        "halfmask:Schema",
        "halfmask.schema:Column",
        "halfmask.schema:Label",
        "halfmask.schema:Unit",
    ],
    "What is promised, and what is spent": ["halfmask:Statement", "halfmask:Ledger"],
    "What a model learnt": [
        "halfmask.effects:Effects",
        "halfmask.effects:Effect",
        "halfmask.effects:Explanation",
    ],
    "Models and reports": [
        "halfmask.model:Model",
        "halfmask.report.html:write_report",
        "halfmask.datasets:load_adult",
    ],
    "Errors": [
        f"halfmask:{name}Error"
        for name in (
            "Halfmask",
            "Input",
            "Schema",
            "Data",
            "Ledger",
            "Accounting",
            "BudgetExceeded",
            "ClaimRefuted",
        )
    ],
}
_HEAD = """# API reference

Made from docstrings by `python docs/make_api.py`; a test keeps it up to date. Everything else is
internal and may change. Commands say `halfmask COMMAND --help`; methods have
[settings](settings.md).
"""
_SECTION = re.compile(r"^(Parameters|Attributes|Returns|Examples)\n-+\n", re.MULTILINE)


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, names in NAMES.items():
        parts.append(f"## {title}\n")
        for name in names:
            module, _, attribute = name.partition(":")
            parts.append(_entry(attribute, getattr(import_module(module), attribute), module))
    return "\n".join(parts)


def _entry(name: str, thing: Any, module: str) -> str:
    if isinstance(thing, type) and issubclass(thing, Exception):
        return f"- `{name}`: {_first(thing)}\n"
    lines = [f"### {name}", "", f"`{_call(name, thing)}`", "", f"From `{module}`.", ""]
    lines += [_rendered(inspect.getdoc(thing) or "")]
    if isinstance(thing, type):
        for member, each in _members(thing):
            lines += [f"**`{_call(member, each)}`** {_rendered(inspect.getdoc(each) or '')}"]
    return "\n".join(lines)


def _members(thing: type) -> list[tuple[str, Any]]:
    """Public methods and properties that are ours, in the order of their names."""
    found = []
    for name, each in inspect.getmembers(thing):
        real = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        ours = str(getattr(real, "__module__", "")).startswith("halfmask")
        if not name.startswith("_") and ours and not isinstance(each, type) and callable(real):
            found.append((name, each))
    return found


def _call(name: str, thing: Any) -> str:
    if isinstance(thing, property):
        return name
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    shown = []
    for each in signature.parameters.values():
        if each.name in ("self", "_"):
            continue
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={_short(each.default)}"
        shown.append(f"{star}{each.name}{default}")
    return f"{name}({', '.join(shown)})"


def _short(value: object) -> str:
    text = repr(value)
    return "..." if "<" in text or " at 0x" in text else text


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _rendered(text: str) -> str:
    """Markdown of a docstring."""
    pieces = _SECTION.split(text)
    lines = [pieces[0].strip(), ""]
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if heading == "Examples":
            lines += ["```python", *_code(body), "```", ""]
            continue
        lines += [f"*{heading}*", ""]
        for line in body.strip("\n").splitlines():
            if line.startswith(" "):
                lines[-1] += f" {line.strip()}"
            elif line.strip():
                name, _, kind = line.partition(" : ")
                lines.append(f"- `{name}`" + (f" ({kind})." if kind else ":"))
        lines.append("")
    return "\n".join(lines)


def _code(body: str) -> list[str]:
    """The lines that are typed; what is printed stands behind them as comments."""
    lines = []
    for line in body.strip("\n").splitlines():
        if line.startswith((">>> ", "... ")):
            lines.append(line[4:])
        elif line.strip() in (">>>", "..."):
            lines.append("")
        elif line.strip():
            lines[-1] += f"    # {line.strip()}"
    return lines


if __name__ == "__main__":
    (HERE / "api.md").write_text(page(), encoding="utf-8")
