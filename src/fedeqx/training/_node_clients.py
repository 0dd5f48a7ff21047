"""A Flower node's clients: the groups of a grouped data set, as a program's client arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import data
from ..federated.backends.flower import NodeClient, NodeError, Wanted
from ._loop import client_seed

_TEXT_COLUMN = "text"
# The names that `ClientData` of `to_clients` gives a cohort's arrays.
_TOKENS, _MASK, _STEP_MASK, _COUNT, _SEED = "tokens", "mask", "step_mask", "num_examples", "seed"


def node_clients(wanted: Wanted) -> Iterator[NodeClient]:
    """The groups of the data set at `wanted.path`, each a client.

    - Arguments named like a cohort of `fedeqx.data.cohorts` (`...batches['tokens']`, `['mask']`,
        `step_mask`, `num_examples`, `seed`) get the group's text as byte-level tokens; steps, batch
        and sequence length are those of the plan's shapes.
    - Any other argument gets the column of its name's last part, with the examples stacked:
        [examples, ...] as the plan's shape. `num_examples` and `seed` are known there, too.

    Raises `NodeError` for a data set that cannot give what the plan wants.
    """
    dataset = data.open(wanted.path)
    if any(_last(name) == _TOKENS for name in wanted.inputs):
        yield from _text_clients(dataset, wanted)
    else:
        yield from _column_clients(dataset, wanted)


def _text_clients(dataset: data.GroupedDataset, wanted: Wanted) -> Iterator[NodeClient]:
    shapes = {_last(name): shape for name, (shape, _) in wanted.inputs.items()}
    unknown = set(shapes) - {_TOKENS, _MASK, _STEP_MASK, _COUNT, _SEED}
    if unknown or len(shapes[_TOKENS]) != 3:
        raise NodeError(
            f"the program takes tokens of shape {list(shapes[_TOKENS])} and {sorted(unknown)}; "
            "grouped text gives [steps, batch, sequence + 1], mask, step_mask, num_examples, seed"
        )
    steps, batch_size, length = shapes[_TOKENS]
    settings = wanted.settings
    ids = [dataset[number].id for number in _numbers(dataset, wanted)]
    cohorts = data.cohorts(
        dataset,
        size=len(ids),
        steps=steps,
        batch_size=batch_size,
        sequence_length=length - 1,
        seed=settings.seed,
        text=_TEXT_COLUMN,
        epochs=settings.epochs,
        sampling=[ids],  # these in every round
    )
    for cohort in cohorts.chunks(wanted.run, clients=1, threads=0, buffer=1):
        arrays = {
            _TOKENS: cohort.batches["tokens"][0],
            _MASK: cohort.batches["mask"][0],
            _STEP_MASK: cohort.step_mask[0],
            _COUNT: cohort.num_examples[0],
            _SEED: np.uint32(client_seed(cohort.ids[0])),
        }
        yield NodeClient(cohort.ids[0], {name: arrays[_last(name)] for name in wanted.inputs})


def _column_clients(dataset: data.GroupedDataset, wanted: Wanted) -> Iterator[NodeClient]:
    for number in _numbers(dataset, wanted):
        group = dataset[number]
        examples = list(group)
        yield NodeClient(
            group.id,
            {
                name: _column(_last(name), group.id, examples, shape, dtype)
                for name, (shape, dtype) in wanted.inputs.items()
            },
        )


def _column(
    name: str,
    group_id: Any,
    examples: Sequence[Mapping[str, Any]],
    shape: tuple[int, ...],
    dtype: str,
) -> np.ndarray:
    if examples and name in examples[0]:
        stacked = np.asarray([example[name] for example in examples])
        if stacked.shape == (1, *shape):
            stacked = stacked[0]
        return stacked.astype(dtype, casting="same_kind", copy=False)
    if name == _COUNT:
        return np.asarray(len(examples), dtype)
    if name == _SEED:
        return np.asarray(client_seed(group_id), dtype)
    found = ", ".join(examples[0]) if examples else "no examples"
    raise NodeError(f"the node's data has no column {name!r}; it has {found}")


def _numbers(dataset: data.GroupedDataset, wanted: Wanted) -> list[int]:
    """Which groups take part: all, or as many as the settings say, drawn anew for each run."""
    count = wanted.settings.clients_per_node
    if count > len(dataset):
        raise NodeError(f"clients-per-node is {count}, and this node has {len(dataset)} groups")
    if not count:
        return list(range(len(dataset)))
    random = np.random.default_rng([wanted.settings.seed, wanted.run])
    return sorted(random.choice(len(dataset), count, replace=False).tolist())


def _last(name: str) -> str:
    """The last part of an argument's name: `cohort.batches['mask']` and `x.mask` end in `mask`."""
    return re.findall(r"\w+", name)[-1]
