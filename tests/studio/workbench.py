"""A studio for tests: asked by its HTTP interface, without a socket or a browser."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfmask.data.reading import open_rows
from halfmask.studio.server import Guard, application
from halfmask.studio.workshop import Files, Workshop

TOKEN, PORT = "a-secret-of-this-test", 8765
HOST = f"127.0.0.1:{PORT}"


@dataclass(frozen=True)
class Answer:
    """What the server sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    app: Guard,
    path: str,
    *,
    method: str = "GET",
    headers: Sequence[tuple[str, str]] | None = None,
    body: bytes = b"",
) -> Answer:
    """One request; without `headers`, those of the page itself."""
    given = [("host", HOST)] if headers is None else list(headers)
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    raw = [(name.decode().lower(), value.decode()) for name, value in sent[0]["headers"]]
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], dict(raw), content)


@dataclass
class Bench:
    """A studio, and everything it has answered."""

    app: Guard
    workshop: Workshop
    said: list[Answer]

    def get(self, path: str, code: int = 200) -> Any:
        return self._kept(ask(self.app, f"/{TOKEN}/{path}"), code)

    def post(self, path: str, body: Mapping[str, Any] | None = None, code: int = 200) -> Any:
        headers = [
            ("host", HOST),
            ("origin", f"http://{HOST}"),
            ("content-type", "application/json"),
        ]
        content = json.dumps(body or {}).encode()
        found = ask(self.app, f"/{TOKEN}/{path}", method="POST", headers=headers, body=content)
        return self._kept(found, code)

    def _kept(self, answer: Answer, code: int) -> Any:
        self.said.append(answer)
        assert answer.status == code, answer.body.decode()
        return answer.json() if answer.headers["content-type"] == "application/json" else answer


@contextmanager
def bench(
    folder: Path, *, dictionaries: Sequence[str] = (), label: str | None = None
) -> Iterator[Bench]:
    """The studio of `rows.csv` in `folder`, which is the current folder meanwhile."""
    with chdir(folder), open_rows("rows.csv") as rows:
        files = Files(
            data=Path("rows.csv"),
            schema=Path("rows.toml"),
            out=Path("out"),
            ledger=Path("out/ledger.jsonl"),
            dictionaries=tuple(map(Path, dictionaries)),
        )
        workshop = Workshop(files, rows, label=label)
        yield Bench(application(workshop, token=TOKEN, port=PORT), workshop, [])


def write_rows(folder: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """`rows.csv`, every cell quoted."""
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
