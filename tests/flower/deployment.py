"""A real Flower deployment on loopback: processes that a test starts, and stops by process id."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower.tls import Tls

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Deployment:
    """One SuperLink and its SuperNodes, in a folder of their own."""

    def __init__(self, folder: Path, *, tls: "Tls | None" = None, python_path: Path | None = None):
        self.folder, self.tls, self.python_path = folder, tls, python_path
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.may_end: set[str] = set()
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.address = f"127.0.0.1:{self.port}"
        trust = (
            "insecure = true" if tls is None else f'root-certificates = "{tls.certificate_of_ca}"'
        )
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "test"\n\n[superlink.test]\n'
            f'address = "{self.address}"\n{trust}\n'
        )

    def start_superlink(self, *extra: str) -> None:
        security = (
            ["--insecure"]
            if self.tls is None
            else [
                *("--ssl-ca-certfile", str(self.tls.certificate_of_ca)),
                *("--ssl-certfile", str(self.tls.certificate)),
                *("--ssl-keyfile", str(self.tls.key)),
                "--enable-supernode-auth",
            ]
        )
        self._start(
            "superlink",
            "flower-superlink",
            *security,
            *("--host", "127.0.0.1", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
            *extra,
        )
        self._until(lambda: _open(self.port), 60, "the SuperLink to listen")

    def start_supernode(
        self,
        name: str,
        config: Mapping[str, Any],
        *,
        superlink: str | None = None,
        may_end: bool = False,
    ) -> None:
        """Starts a node; one that `may_end` is refused, and no error of the test."""
        told = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        security = (
            ["--insecure"]
            if self.tls is None
            else [
                *("--root-certificates", str(self.tls.certificate_of_ca)),
                *("--auth-supernode-private-key", str(self.tls.node_key(name))),
            ]
        )
        self._start(
            name,
            "flower-supernode",
            *security,
            *("--superlink", superlink or self.address),
            *("--port", str(free_port())),
            *("--node-config", told),
        )
        if may_end:
            self.may_end.add(name)

    def flwr(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """The `flwr` command, as a user gives it."""
        return subprocess.run(
            [BIN / "flwr", *arguments],
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def submit(self, app: Path, *config: str) -> str:
        """Starts a run and returns its number."""
        overrides = [part for setting in config for part in ("--run-config", setting)]
        done = self.flwr("run", str(app), "test", "--format", "json", *overrides)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])["run-id"]

    def status(self, run: str) -> str:
        done = self.flwr("ls", "test", "--run-id", run, "--format", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])["runs"][0]["status"]

    def finish(self, run: str, *, timeout: float = 600) -> str:
        """Waits for a run to end; its status, `finished:completed` if all went well."""
        deadline = time.monotonic() + timeout
        while not (status := self.status(run)).startswith("finished"):
            assert time.monotonic() < deadline, f"{status}\n{self.log('superlink')}"
            time.sleep(1)
        return status

    def run(self, app: Path, *config: str) -> str:
        return self.finish(self.submit(app, *config))

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Ends a process and the processes that it started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(30)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, text: str, name: str = "superlink", timeout: float = 300) -> None:
        self._until(lambda: text in self.log(name), timeout, f"{text!r} in the log of {name}")

    def wait_for_nodes(self, count: int, timeout: float = 120) -> None:
        """Until so many nodes have activated themselves."""
        self._until(
            lambda: self.log("superlink").count("/v1/fleet/activate-node") >= count,
            timeout,
            f"{count} nodes",
        )

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def _start(self, name: str, command: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.log").open("a")
        home = self.home if name == "superlink" else self.folder / f"home-{name}"
        self.processes[name] = subprocess.Popen(
            [BIN / command, *arguments],
            env={**self._environment(), "FLWR_HOME": str(home)},
            cwd=self.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()

    def _environment(self) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "" if self.python_path is None else str(self.python_path),
            # Each message starts a process of its own; what one compiled, the next finds.
            "JAX_COMPILATION_CACHE_DIR": str(self.folder.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def _until(self, true, timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not true():
            for name, process in self.processes.items():
                assert name in self.may_end or process.poll() is None, (
                    f"{name} ended:\n{self.log(name)}"
                )
            assert time.monotonic() < deadline, f"no {what}:\n{self.log('superlink')}"
            time.sleep(0.3)


def _open(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def deployed(
    folder: Path, nodes: Mapping[str, Mapping[str, Any]], **options: Any
) -> Iterator[Deployment]:
    """A SuperLink and so many SuperNodes, stopped at the end whatever happens."""
    deployment = Deployment(folder, **options)
    try:
        deployment.start_superlink()
        for name, config in nodes.items():
            deployment.start_supernode(name, config)
        yield deployment
    finally:
        deployment.stop()
