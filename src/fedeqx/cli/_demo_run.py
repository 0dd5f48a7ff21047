"""The work of `fedeqx demo`, step by step; each step finds what an earlier run finished."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from .. import data, learning, nn, training
from ..federated import Clients, default_at_once, stream
from ..learning import ClientData, Optimizer
from ._demo import Settings, show_groups
from ._tables import table

_CHECKPOINT_EVERY = 4
_PERCENTILES = (10, 50, 90)


class Demo:
    """One run of the demo in one folder."""

    def __init__(self, out: Path, settings: Settings):
        self.settings = settings
        config = dataclasses.asdict(settings) | {"model": "tiny", "python": sys.version.split()[0]}
        self.files = training.Run(out, config)
        self.key = jax.random.key(settings.seed)

    def run(self) -> None:
        dataset = self._grouped()
        parts = dataset.split_groups(
            {"train": 1 - self.settings.held_out, "held_out": self.settings.held_out},
            seed=self.settings.seed,
        )
        model = nn.Transformer(
            nn.TransformerConfig.preset(
                "tiny", vocab_size=data.BYTE_VOCAB_SIZE, depth=self.settings.depth
            ),
            key=jax.random.fold_in(self.key, 0),
        )
        parameters = sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
        print(
            f"\nA transformer of {parameters:,} parameters; {self.settings.rounds} rounds of "
            f"{self.settings.cohort} clients, at most {self.settings.tokens_per_round:,} tokens a "
            "round"
        )
        models = {}
        for name, algorithm in self._algorithms().items():
            models[name] = self._trained(name, algorithm, model, parts["train"])
        clients = self._personalized(models, parts["held_out"])
        self._report(clients)

    def _algorithms(self) -> dict[str, learning.AbstractAlgorithm]:
        """Both with Adam at the server, as in Dataset Grouper's experiments (arXiv 2307.09619)."""
        server_optimizer = Optimizer(optax.adam, learning_rate=3e-3)
        at_once = default_at_once()  # in less memory than all at once, and on CPUs in less time
        return {
            "FedAvg": learning.FedAvg(
                _loss,
                client_optimizer=Optimizer(optax.sgd, learning_rate=0.1),
                server_optimizer=server_optimizer,
                at_once=at_once,
            ),
            "FedSGD": learning.FedSGD(_loss, server_optimizer=server_optimizer, at_once=at_once),
        }

    def _grouped(self) -> data.GroupedDataset:
        place = self.files.folder / "data"
        if not place.exists():
            print("Grouping this Python's standard library by package", flush=True)
            data.group(data.python_stdlib(), by=data.stdlib_package, out=place)
        dataset = data.open(place)
        show_groups(dataset, len(json.loads((place / "manifest.json").read_text())["skipped"]))
        return dataset

    def _trained(
        self, name: str, algorithm: learning.AbstractAlgorithm, model: Any, dataset: Any
    ) -> Any:
        """The model after all rounds, going on from the last checkpoint if there is one."""
        settings, files = self.settings, self.files
        final = files.folder / f"{name}.eqx"
        state = algorithm.init(model, key=self.key)
        if final.exists():
            print(f"{name}: finished earlier")
            return eqx.tree_deserialise_leaves(final, algorithm.model(state))
        start, where = 0, files.position()
        if where is not None and where["algorithm"] == name:
            state, start = files.restore(state), where["round"]
            print(f"{name}: going on after round {start}")
        cohorts = data.cohorts(
            dataset,
            size=settings.cohort,
            steps=settings.steps,
            batch_size=settings.batch_size,
            sequence_length=settings.sequence_length,
            seed=settings.seed,
        )
        with tqdm(total=settings.rounds, initial=start, desc=name, unit="round") as bar:

            def tell(result: training.RoundResult) -> None:
                report, number = result.report, result.round + 1
                tokens = float(report.aggregator.total_weight) * settings.sequence_length
                loss = float(report.client.loss)
                files.log(
                    algorithm=name,
                    round=number,
                    loss=loss,
                    clients_used=int(report.aggregator.clients_used),
                    sequences=int(report.aggregator.total_weight),
                    update_norm=float(report.server.update_norm),
                    seconds=round(result.seconds, 4),
                )
                bar.set_postfix_str(f"loss {loss:.3f}, {tokens / result.seconds:,.0f} tokens/s")
                bar.update()
                if number % _CHECKPOINT_EVERY == 0:
                    files.checkpoint(result.state, algorithm=name, round=number)

            state = training.train(
                algorithm,
                state,
                cohorts.to_grain(start=start),
                start=start,
                stop=settings.rounds,
                key=jax.random.fold_in(self.key, 1),
                callbacks=[tell],
            )
        files.save(final.name, algorithm.model(state))
        return algorithm.model(state)

    def _personalized(
        self, models: dict[str, Any], dataset: data.GroupedDataset
    ) -> dict[str, training.PersonalizationReport]:
        """Fine-tunes every model on the first half of each held-out group, cohort by cohort."""
        settings = self.settings
        prepared = [parts for group in dataset if (parts := self._halves(group)) is not None]
        print(
            f"\nPersonalization: {len(prepared)} of {dataset.num_groups} held-out groups have "
            "text enough to tune on one half and measure on the other"
        )
        work = learning.LocalSGD(_loss, Optimizer(optax.sgd, learning_rate=0.1))
        step = eqx.filter_jit(stream(training.personalize))
        results = {}
        with tqdm(total=len(models) * len(prepared), desc="tuning", unit="client") as bar:
            for name, model in models.items():
                reports = []
                for i in range(0, len(prepared), settings.cohort):
                    # The last cohort is filled up with the first clients, and they are cut off.
                    some = (prepared[i:] + prepared)[: settings.cohort]
                    tuning, held_out = (Clients.stack(part) for part in zip(*some, strict=True))
                    report = step(
                        model,
                        tuning,
                        held_out,
                        work=work,
                        metric=nn.next_token_nll,
                        key=jax.random.fold_in(self.key, 2),
                    )
                    kept = min(settings.cohort, len(prepared) - i)
                    reports.append(jax.tree.map(lambda x, k=kept: np.asarray(x)[:k], report.value))
                    bar.update(kept)
                results[name] = jax.tree.map(lambda *xs: np.concatenate(xs), *reports)
        return results

    def _halves(self, group: data.Group) -> tuple[ClientData, dict[str, np.ndarray]] | None:
        """The first half of a group's sequences to tune on, and the second to measure on."""
        settings = self.settings
        capacity = settings.personal_steps * settings.batch_size
        wanted = 2 * capacity * settings.sequence_length + 1
        pieces: list[np.ndarray] = []
        for example in group:
            if pieces:
                pieces.append(np.array([data.SEPARATOR], np.int32))
            pieces.append(data.encode_bytes(example["text"]))
            if sum(map(len, pieces)) >= wanted:
                break
        sequences = data.pack(np.concatenate(pieces)[:wanted], settings.sequence_length)
        half = len(sequences.tokens) // 2
        if half == 0:
            return None

        def batches(part: slice) -> dict[str, np.ndarray]:
            shape = (settings.personal_steps, settings.batch_size, -1)
            parts = sequences._asdict().items()
            return {name: _padded(array[part], capacity).reshape(shape) for name, array in parts}

        tuning = batches(slice(0, half))
        client = ClientData(
            batches=jax.tree.map(jnp.asarray, tuning),
            step_mask=jnp.asarray(tuning["mask"].any(axis=(1, 2))),
            num_examples=jnp.asarray(half, jnp.int32),
            seed=jnp.asarray(training.client_seed(group.id), jnp.uint32),
        )
        return client, batches(slice(half, None))

    def _report(self, clients: dict[str, training.PersonalizationReport]) -> None:
        files = self.files
        header = [
            "held-out loss, nats per token",
            *(f"p{mark} of clients" for mark in _PERCENTILES),
        ]
        rows = []
        for name, report in clients.items():
            for label, values in (
                (f"{name}, pre-personalization", report.pre),
                (f"{name}, post-personalization", report.post),
            ):
                marks = {f"p{p}": float(np.percentile(values, p)) for p in _PERCENTILES}
                rows.append([label, *(f"{value:.3f}" for value in marks.values())])
        lines = [line for line in files.metrics() if "round" in line]
        files.save_text(
            "personalization.json",
            json.dumps(
                {n: {k: v.tolist() for k, v in r._asdict().items()} for n, r in clients.items()}
            ),
        )
        training.plot_run(
            files.folder / "run.png",
            losses={
                name: [line["loss"] for line in lines if line["algorithm"] == name]
                for name in clients
            },
            personalization={
                name: (r.pre.tolist(), r.post.tolist()) for name, r in clients.items()
            },
        )
        print("\n" + table(header, rows))
        print(f"\nThe run is in {files.folder}: config.json, metrics.jsonl, personalization.json,")
        print("the models FedAvg.eqx and FedSGD.eqx, run.png, and the grouped data in data/")


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    """Lengthens the leading axis with zeros: as tokens they are masked, as a mask they mask."""
    missing = length - len(array)
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def _loss(model: Any, batch: Any, key: Any) -> Any:
    del key  # the transformer has no dropout
    return nn.next_token_loss(model, batch)
