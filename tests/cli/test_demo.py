"""The main job, whole, with everything small: what it writes, and that going on changes nothing."""

import json

import numpy as np
import pytest

from fedeqx.cli import _demo, main
from fedeqx.training import Run

ROUNDS = 6
SMALL = _demo.Settings(
    seed=5,
    rounds=ROUNDS,
    cohort=3,
    steps=1,
    batch_size=2,
    sequence_length=16,
    personal_steps=1,
    depth=1,
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(_demo, "settings_of", lambda arguments: SMALL)


def numbers(folder):
    """The metrics, without the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_the_main_job_and_an_interrupted_one_that_goes_on(small, tmp_path, monkeypatch, capsys):
    whole = tmp_path / "whole"
    assert main(["demo", "--out", str(whole)]) == 0
    printed = capsys.readouterr().out
    for label in ("FedAvg, pre-pers", "FedAvg, post-pers", "FedSGD, pre-pers", "FedSGD, post-pers"):
        assert label in printed
    for what in ("groups", "p10 of clients", "p50 of clients", "p90 of clients", "p99"):
        assert what in printed
    assert {p.name for p in whole.iterdir()} >= {
        *("config.json", "metrics.jsonl", "personalization.json", "run.png", "data"),
        *("FedAvg.eqx", "FedSGD.eqx"),
    }
    told = numbers(whole)
    assert [(line["algorithm"], line["round"]) for line in told] == [
        (name, r + 1) for name in ("FedAvg", "FedSGD") for r in range(ROUNDS)
    ]
    assert all(np.isfinite(line["loss"]) and line["clients_used"] <= 3 for line in told)
    # Equal tokens: both algorithms see the same cohorts.
    assert [x["sequences"] for x in told[:ROUNDS]] == [x["sequences"] for x in told[ROUNDS:]]

    broken = tmp_path / "broken"
    log = Run.log

    def interrupting(self, **values):
        if (values["algorithm"], values["round"]) == ("FedSGD", 6):
            raise KeyboardInterrupt
        log(self, **values)

    monkeypatch.setattr(Run, "log", interrupting)
    assert main(["demo", "--out", str(broken)]) == 130
    assert f"fedeqx demo --out {broken} --seed" in capsys.readouterr().err
    monkeypatch.setattr(Run, "log", log)
    assert main(["demo", "--out", str(broken)]) == 0
    printed = capsys.readouterr().out
    assert "FedAvg: finished earlier" in printed
    assert "FedSGD: going on after round 4" in printed
    assert numbers(broken) == told
    for name in ("personalization.json", "FedAvg.eqx", "FedSGD.eqx"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_the_default_run_and_the_quick_one_differ_in_length_only():
    parser = _demo.argparse.ArgumentParser()
    _demo.add_parser(parser.add_subparsers())
    default = _demo.settings_of(parser.parse_args(["demo"]))
    quick = _demo.settings_of(parser.parse_args(["demo", "--quick", "--seed", "3"]))
    assert (default.seed, quick.seed) == (0, 3)
    assert quick.rounds * quick.tokens_per_round < default.rounds * default.tokens_per_round
    assert _demo.settings_of(parser.parse_args(["demo", "--rounds", "3"])).rounds == 3
