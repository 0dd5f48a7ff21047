"""Every job: `nox -s demo`, `tests`, `slow`, `extras`, `flower`, `lint`, `typecheck`, `bench`."""

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
    """Benchmarks against peers, in an environment of their own: `nox -s bench -- core`."""
    names = session.posargs or ["core"]
    session.install(".", *_group("bench"))
    for name in names:
        session.run("python", f"benchmarks/{name}.py")
