"""Every job of the project; `nox -l` lists them."""

from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests", "lint", "typecheck"]

PROJECT = nox.project.load_toml("pyproject.toml")
CODE = ("src", "tests", "examples", "benchmarks", "noxfile.py")


def _group(name: str) -> list[str]:
    return nox.project.dependency_groups(PROJECT, name)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: `nox -s demo -- --quick --out DIR`."""
    session.install(".[plot]")
    session.run("fedeqx", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, on eight simulated devices: `nox -s tests -- tests/data -k stream`."""
    session.install("-e", ".[export,plot]", *_group("test"))
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that `tests` leaves out for time: more combinations of the same kinds."""
    session.install("-e", ".[export,plot]", *_group("test"))
    session.run("pytest", "-n", "2", "-m", "slow", *session.posargs)


@nox.session
def extras(session: nox.Session) -> None:
    """Grouping with Apache Beam, Hugging Face data sets, TFDS: `nox -s extras -- -k beam`."""
    session.install("-e", ".[beam,hf,tfds]", *_group("test"))
    session.run("pytest", "-n", "2", "tests/extras", *session.posargs)


@nox.session
def interop(session: nox.Session) -> None:
    """Group streams in PyTorch, tf.data and Hugging Face datasets; tables of pandas and Polars."""
    frameworks = ("pandas", "polars", "tensorflow-cpu", "torch")
    session.install("-e", ".[hf]", *frameworks, *_group("test"))
    session.run("pytest", "tests/data/test_interop.py", "tests/data/test_sources.py")


@nox.session
def flower(session: nox.Session) -> None:
    """Plans on a real Flower deployment: SuperLink and SuperNodes started and stopped by tests."""
    session.install("-e", ".[export,flower]", *_group("test"))
    session.run("pytest", "-m", "flower", *(session.posargs or ["tests/flower"]))


@nox.session
def lint(session: nox.Session) -> None:
    """Format and lint, changing nothing."""
    session.install(*_group("lint"))
    session.run("ruff", "format", "--check", *CODE)
    session.run("ruff", "check", *CODE)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Pyright over everything."""
    session.install("-e", ".[export,flower,plot]", *_group("test"), *_group("typecheck"), "nox")
    session.run("pyright", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Benchmarks against peers, in an environment of their own: `nox -s bench -- core`.

    What follows the names goes to each: `nox -s bench -- data --part cohort`.
    """
    arguments = list(session.posargs)
    first_option = next((n for n, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    names, options = arguments[:first_option] or ["core"], arguments[first_option:]
    session.install(".", *_group("bench"))
    for name in names:
        peer = ["--peer", _dataset_grouper(session)] if name == "data" else []
        session.run("python", f"benchmarks/{name}.py", *peer, *options)


def _dataset_grouper(session: nox.Session) -> str:
    """The Python that has dataset-grouper, which installs on Python 3.10 at the newest."""
    session.install("uv")
    folder = Path(session.create_tmp(), "dataset-grouper")
    python = str(folder / "bin" / "python")
    session.run("uv", "venv", "--no-project", "--allow-existing", "--python", "3.10", str(folder))
    session.run("uv", "pip", "install", "--python", python, "-r", "benchmarks/dataset_grouper.txt")
    return python
