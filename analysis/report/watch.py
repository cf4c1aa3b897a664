"""The report page served while a sweep runs. Reads results, writes nothing."""

import gzip
import hashlib
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd

from analysis.report.changes import Changes
from analysis.report.data import conclusions, read_tables, shown_data, with_running
from analysis.report.page import page
from analysis.report.running import progress_stamps, running_runs
from analysis.tables.files import listing
from analysis.tables.load import folders
from analysis.tables.metric import AskedMetric, Measured

#: How long a client may take to say what it wants [seconds].
_PATIENCE_S = 30

#: Conclusions rest for this many times as long as they took, so they use a tenth of the time.
_REST = 9


class Watcher:
    """Results folders, read again only when something in them changed.

    Running and queued runs are read again at each tenth of an epoch. Claims and estimates, which
    take longer and depend on ended runs only, are renewed when another run has ended, and not too
    often.

    The metric of the first runs stays the page's, also if later ones name another.
    """

    def __init__(
        self, results: Sequence[str], command: str, asked: AskedMetric | None = None
    ) -> None:
        folders(results)
        self._results, self._command, self._asked = list(results), command, asked
        self._lock, self._version, self._changes = Lock(), "", Changes()
        self._ended, self._tables = "", Measured(pd.DataFrame(), pd.DataFrame())
        self._concluded, self._due_s = "", 0.0
        self._conclusions: dict[str, Any] = {}

    def version(self) -> str:
        """A text that changes when a run starts, finishes a tenth of an epoch, or ends."""
        return _digest([self._files(), *progress_stamps(self._results)])

    def data_json(self, since: str = "") -> str:
        """What changed since a state of the page; all of it if that is not one of ours."""
        with self._lock:
            version = self.version()
            is_due = self._concluded != self._ended and time.monotonic() >= self._due_s
            if version != self._version or is_due:
                self._changes.take(self._data())
                self._version = version
            return self._changes.since(since)

    def _data(self) -> dict[str, Any]:
        ended = self._files()
        if ended != self._ended:
            self._tables = read_tables(self._results, self._asked)
            metric = self._tables.metric
            if metric.name in set(self._tables.runs.get("metric_name", ())):
                self._asked = AskedMetric(metric.name, metric.mode)
            self._ended = ended
        if ended != self._concluded and time.monotonic() >= self._due_s:
            began_s = time.monotonic()
            self._conclusions = conclusions(self._tables)
            self._due_s = time.monotonic() + _REST * (time.monotonic() - began_s)
            self._concluded = ended
        tables = with_running(self._tables, *running_runs(self._results))
        return shown_data(tables, self._results, self._command) | self._conclusions

    def _files(self) -> str:
        """A text that changes when a file of the tables appears, changes or goes."""
        paths = [
            path
            for folder in self._results
            for kind in ("runs", "curves", "metrics")
            for path in listing(Path(folder) / kind)
        ]
        return _digest([f"{path} {_stamp(path)}" for path in paths])


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # superseded since it was listed
        return 0


def open_server(watcher: Watcher, host: str, port: int) -> ThreadingHTTPServer:
    """As `make_server`; ValueError if the address is not one to listen on."""
    if not host.strip():
        msg = f"--host must be an address of this machine; got {host!r}. Leave it out."
        raise ValueError(msg)
    try:
        return make_server(watcher, host, port)
    except (OSError, UnicodeError) as error:
        msg = (
            "--host and --port must be an address of this machine that is free; got "
            f"{host}:{port}: {getattr(error, 'strerror', None) or error}. "
            "Leave out --host, or name another --port."
        )
        raise ValueError(msg) from error


def make_server(watcher: Watcher, host: str, port: int) -> ThreadingHTTPServer:
    """A server of the live page; `serve_forever` runs it.

    Only requests that name this host are answered, so that no other site's page can read the
    results through a name that it points here.

    Port 0 takes any that is free.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            if not _is_named_here(self.headers.get("Host", ""), host):
                self._answer(
                    403, "text/plain", "this server only accepts requests to its own address"
                )
                return
            asked = urlsplit(self.path)
            since = parse_qs(asked.query).get("since", [""])[0]
            pages = {
                "/": ("text/html", lambda: page(None, live=True)),
                "/data.json": ("application/json", lambda: watcher.data_json(since)),
            }
            kind, body = pages.get(asked.path, ("text/plain", None))
            if body is None:
                self._answer(404, kind, "not here")
            else:
                self._answer(200, kind, body())

        def _answer(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                body = gzip.compress(body, 6)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet: the terminal may show a sweep."""

    return _Server((host, port), Handler)


class _Server(ThreadingHTTPServer):
    """Says nothing about clients that disconnect."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _is_named_here(named: str, host: str) -> bool:
    name = named.rsplit(":", 1)[0]
    return host not in ("127.0.0.1", "localhost") or name in ("127.0.0.1", "localhost")
