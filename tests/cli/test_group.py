"""`fedeqx group`: the same data set as from Python; errors on one line; nothing left behind."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedeqx.data as data
from fedeqx.cli import main
from fedeqx.cli._group import Bars

ROWS = [
    {
        "user": f"u{n % 7}",
        "a:b": n % 3,
        "k,l": n % 5,
        "y": (n * n) % 10,
        "coarse": (n * n) % 10 // 5,
        "url": f"https://d{n % 4}.org/{n}",
        "text": f"text {n}",
    }
    for n in range(240)
]

FUNCTIONS = """
import pyarrow.compute as pc
import fedeqx.data as data

def parity(example):
    return example["y"] % 2

def parity_of_batch(batch):
    return pc.bit_wise_and(batch["y"], 1)

class Inside:
    parity = staticmethod(parity)

partition = data.iid(3, seed=5)
number = 5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a source and a module in it that no other test has imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "functions_of_mine", raising=False)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "functions_of_mine.py").write_text(FUNCTIONS)
    return tmp_path


def group(*arguments):
    return main(["group", *map(str, arguments), "--quiet"])


def contents(folder):
    return {g.id: [example["text"] for example in g] for g in data.open(folder)}


def parity(example):
    return example["y"] % 2


PARTITIONS = {
    "user": data.by_field("user"),
    "field:a:b": data.by_field("a:b"),
    "url-domain": data.by_url_domain("url"),
    "url-domain:url": data.by_url_domain("url"),
    "sql:concat(user, ',', y)": data.by_expression("concat(user, ',', y)"),
    "functions_of_mine:parity": parity,
    "functions_of_mine:Inside.parity": parity,
    "functions_of_mine:partition": data.iid(3, seed=5),
    "function:functions_of_mine:parity_of_batch,batched=true": parity,
    "function:functions_of_mine:parity,batched=false": parity,
    "iid:5,seed=3": data.iid(5, seed=3),
    "iid:num_groups=5,seed=3": data.iid(5, seed=3),
    "power-law:6,exponent=1.5,seed=0": data.power_law(6, exponent=1.5, seed=0),
    "lognormal:6,sigma=2,min_size=3,seed=0": data.lognormal(6, sigma=2, min_size=3, seed=0),
    "dirichlet:y,12,alpha=0.5,seed=1": data.dirichlet("y", 12, alpha=0.5, seed=1),
    "dirichlet:label=y,num_groups=12,alpha=1,mix=groups,seed=1": data.dirichlet(
        "y", 12, alpha=1, mix="groups", seed=1
    ),
    'shards:"k,l",8,seed=2': data.shards("k,l", 8, seed=2),
    'shards:num_groups=8,"label=k,l",seed=2': data.shards("k,l", 8, seed=2),
    "pachinko:coarse,y,5,beta=3,seed=-1": data.pachinko("coarse", "y", 5, beta=3, seed=-1),
    "shards:y,8,shards_per_group=3,seed=0": data.shards("y", 8, shards_per_group=3, seed=0),
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf:allenai/c4"], r"hf:allenai/c4: name the split too: hf:allenai/c4,split=train"),
        (["tfds:"], r"tfds:: name the split too: tfds:NAME,split=train"),
        (["tfds:mnist,train"], r"tfds:mnist,train: 'train' is not of the form NAME=VALUE"),
        (["hf:a,split=train"], r"needs the package datasets: pip install 'fedeqx\[hf\]'"),
        (["tfds:a,split=train"], r"needs the package tensorflow-datasets: .*fedeqx\[tfds\]"),
        (["rows.jsonl", "--engine", "beam"], r"needs the package apache-beam: .*fedeqx\[beam\]"),
        (["gs://bucket/x.jsonl"], r"gs://bucket/x.jsonl does not exist.*group_with_beam"),
    ],
)
def test_sources_and_engines_that_are_not_there(folder, monkeypatch, capsys, arguments, message):
    for package in ("apache_beam", "datasets", "tensorflow_datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["group", *arguments, "--by", "user", "--out", "out"]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("text", PARTITIONS)
def test_every_partition_function_is_the_one_of_python(folder, text):
    assert group("rows.jsonl", "--by", text, "--out", "out") == 0
    expected = data.group(ROWS, by=PARTITIONS[text], out=folder / "expected")
    assert contents("out") == contents("expected")
    told = data.open("out").manifest["partition"]
    if told["kind"] != "by_function":
        assert told == expected.manifest["partition"]


def test_every_partition_function_of_the_package_has_a_name_here():
    from fedeqx.cli._partitions import _KINDS, SYNTAX

    simulated = {"iid", "power_law", "lognormal", "dirichlet", "pachinko", "shards"}
    assert set(_KINDS.values()) == simulated | {n for n in data.__all__ if n.startswith("by_")}
    assert all(f"  {kind}:" in SYNTAX for kind in _KINDS)


def test_two_nest(folder):
    assert group("rows.jsonl", "--by", "user", "--by", "iid:2,seed=0", "--out", "out") == 0
    data.group(ROWS, by=data.nested(data.by_field("user"), data.iid(2, seed=0)), out="expected")
    assert contents("out") == contents("expected")
    functions = ("--by", "functions_of_mine:parity", "--by", "user")
    assert group("rows.jsonl", *functions, "--out", "two") == 0
    assert len(contents("two")) == len({(row["y"] % 2, row["user"]) for row in ROWS})


WRONG = {
    "iid:5": "needs|missing.*'seed'.*iid:num_groups=...,seed=...",
    "iid": "num_groups",
    "iid:5,seed=0,seed_=1": "no argument 'seed_'",
    "iid:5,7,seed=0": "'7' is one too many",
    "iid:5,num_groups=6,seed=0": "multiple values.*num_groups",
    "iid:x,seed=0": "num_groups=x: give a whole number",
    "iid:0,seed=0": "num_groups=0",
    "iid:1000,seed=0": "needs at least 1000 examples",
    "lognormal:5,sigma=wide,seed=0": "sigma=wide: give a number",
    "dirichlet:none,5,alpha=1,seed=0": "no field 'none'",
    "function:functions_of_mine:parity,batched=yes": "batched=yes: give true or false",
    "function:functions_of_mine:parity,batched=true": "parity.*raised",
    "nobody": "no field 'nobody'",
    "no_module_of_mine:f": "No module named.*one of field, url-domain",
    "functions_of_mine:f": "no attribute 'f'",
    "functions_of_mine:number": "is a int, not a function",
    "sql:(": "by_expression",
    ":f": "Empty module name",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_with_by_is_told_on_one_line(folder, capsys, text):
    assert group("rows.jsonl", "--by", text, "--out", "out") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("fedeqx: ")
    assert re.search(WRONG[text], error), error
    assert not [path for path in folder.iterdir() if "out" in path.name]


def test_three_do_not_nest(folder, capsys):
    assert group("rows.jsonl", *["--by", "user"] * 3, "--out", "out") == 1
    assert "--by was given 3 times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["rows.jsonl", "nowhere.jsonl"], "nowhere.jsonl"),
        (["rows.jsonl", "rows.csv"], r"cannot be read as one source"),
        (["broken.jsonl"], r"broken\.jsonl, line 2"),
        (["rows.jsonl", "--memory-limit", "much"], "memory_limit='much'"),
        (["rows.jsonl", "--memory-limit", "1MB"], "sorting needs at least"),
        (["rows.jsonl", "--threads", "0"], "threads=0"),
        (["rows.jsonl", "--compression", "tight"], "compression='tight'"),
        (["rows.jsonl", "--out", "full"], "full exists already.*--overwrite"),
    ],
)
def test_other_mistakes_are_told_on_one_line(folder, capsys, arguments, message):
    (folder / "rows.csv").write_text("user\nx\n")
    (folder / "broken.jsonl").write_text('{"user": "a"}\n{"user": \n')
    (folder / "full").mkdir()
    before = sorted(folder.iterdir())
    assert group("--by", "user", "--out", "out", *arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("arguments", [[], ["rows.jsonl"], ["rows.jsonl", "--by", "user"]])
def test_what_is_missing_is_named(folder, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["group", *arguments])
    assert stopped.value.code == 2
    assert "the following arguments are required: " in capsys.readouterr().err


def test_sources(folder):
    table = pa.Table.from_pylist(ROWS)
    (folder / "parts").mkdir()
    pq.write_table(table.slice(0, 100), folder / "parts" / "1.parquet")
    pq.write_table(table.slice(100), folder / "parts" / "2.parquet")
    with gzip.open(folder / "rows.jsonl.gz", "wb") as file:
        file.write((folder / "rows.jsonl").read_bytes())
    expected = {f"u{n}": [f"text {k}" for k in range(n, 240, 7)] for n in range(7)}
    for number, sources in enumerate(
        (
            ["parts"],
            ["parts/*.parquet"],
            ["parts/1.parquet", "parts/2.parquet"],
            ["rows.jsonl.gz"],
        )
    ):
        assert group(*sources, "--by", "user", "--out", f"out{number}") == 0
        assert contents(f"out{number}") == expected


def test_overwrite_and_the_summary(folder, capsys):
    command = ("rows.jsonl", "--out", "out", "--by")
    assert group(*command, "user") == 0
    size = data.open("out").num_bytes
    assert capsys.readouterr().out == f"7 groups, 240 examples, {size / 1000:.3g} kB: out\n"
    assert group(*command, "y", "--overwrite") == 0
    assert set(contents("out")) == {row["y"] for row in ROWS}
    assert group(*command, "dirichlet:y,50,alpha=0.01,mix=groups,seed=0", "--overwrite") == 0
    empty = 50 - data.open("out").num_groups
    assert f"\n{empty} groups are empty" in capsys.readouterr().out


def test_what_cannot_be_grouped_is_counted_under_skip(folder, capsys):
    rows = "".join(json.dumps({"user": None if n % 10 == 3 else "a"}) + "\n" for n in range(50))
    (folder / "some.jsonl").write_text(rows)
    command = ("some.jsonl", "--by", "user", "--out", "out")
    assert group(*command) == 1
    assert "some.jsonl, line 4: the field 'user' is empty" in capsys.readouterr().err
    assert group(*command, "--on-error", "skip") == 0
    out = capsys.readouterr().out
    assert "1 groups, 45 examples" in out
    assert "5 skipped; the first: some.jsonl, line 4: the field 'user' is empty" in out


def test_progress_goes_to_the_error_stream(folder, capsys):
    assert main(["group", "rows.jsonl", "--by", "iid:2,seed=0", "--out", "out"]) == 0
    told = capsys.readouterr()
    for stage in ("reading", "assigning", "writing"):
        assert f"{stage}: 100%" in told.err
    assert re.search(r"240/240 .*examples/s, [\d.]+ \w?B/s\]", told.err)
    assert "reading" not in told.out
    assert group("rows.jsonl", "--by", "user", "--out", "quiet") == 0
    assert capsys.readouterr().err == ""


def test_the_bar_estimates_what_is_left(capsys):
    with Bars(quiet=False) as bars:
        bars(data.Progress("read", 1, 10, 4000, 0.001))
        bars(data.Progress("read", 1000, 10_000, 4000, 10.0))
        assert bars._bar is not None
        told = str(bars._bar)
        bars(data.Progress("read", 5000, 10_000, 4000, 20.0))  # more than was estimated
        assert bars._bar.total == 5000
    assert re.search(r"25%.*1\.00k/4\.00k \[\d\d:\d\d<\d\d:\d\d, .*examples/s, 1 kB/s\]", told)
    assert "reading" in capsys.readouterr().err


def test_a_full_disk_is_told_and_leaves_nothing(folder):
    row = json.dumps({"user": "a", "text": "x" * 5000})
    (folder / "large.jsonl").write_text(f"{row}\n" * 400)
    before = {path.name for path in folder.iterdir()}
    # No file may grow past this, as on a disk that is full.
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        "from fedeqx.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = ["group", "large.jsonl", "--by", "user", "--compression", "none", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--out", "out"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"fedeqx: .*File too large.*\n", done.stderr), done.stderr
    assert {path.name for path in folder.iterdir()} == before


def test_an_interruption_is_told_and_leaves_nothing(folder):
    (folder / "slow_of_mine.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def slow(example):\n"
        "    print('running', flush=True)\n"
        "    time.sleep(60)\n"
    )
    before = {path.name for path in folder.iterdir()}
    command = ["group", "rows.jsonl", "--by", "slow_of_mine:slow", "--out", "out", "--quiet"]
    with subprocess.Popen(
        [sys.executable, "-B", "-m", "fedeqx.cli", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "\nfedeqx: interrupted\n"
    assert {path.name for path in folder.iterdir()} == before


def test_it_loads_no_jax(folder):
    code = (
        "import sys; from fedeqx.cli import main\n"
        "main(['group', 'rows.jsonl', '--by', 'user', '--out', 'out', '--quiet'])\n"
        "main(['stats', 'out', '--label', 'y']); main(['verify', 'out'])\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
