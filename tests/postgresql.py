"""A PostgreSQL server of a test's own, on loopback, from the packages of the system."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


def _program(name: str) -> str:
    """Debian keeps the server's programs off the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(debian[-1]) if debian else None)
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed")
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server that can be stopped and started again; as user postgres, where we are root."""

    def __init__(self) -> None:
        self.initdb, self.pg_ctl = _program("initdb"), _program("pg_ctl")
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self.user: dict[str, object] = {}
        if os.getuid() == 0:
            try:
                account = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL must not run as root, and there is no user postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self.user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self.port = _free_port()
        self.url = f"postgresql+psycopg://sweeper:secret@127.0.0.1:{self.port}/postgres"
        data = str(self.folder / "data")
        self._run(
            self.initdb, "-D", data, "-A", "trust", "-U", "sweeper", "--no-sync", "--no-locale",
            "-E", "UTF8",
        )  # fmt: skip

    def _run(self, *words: str) -> None:
        # Its log must not be our pipe, which would stay open as long as the server lives.
        with (self.folder / "said").open("ab") as said:
            subprocess.run(
                words,
                check=True,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                timeout=60,
                **self.user,
            )

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        options += " -c fsync=off"
        self._run(self.pg_ctl, "-D", "data", "-o", options, "-l", "log", "-w", "start")

    def stop(self) -> None:
        """At once, as in a power cut."""
        self._run(self.pg_ctl, "-D", "data", "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
