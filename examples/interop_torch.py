"""Groups in PyTorch: a stream of groups, or of their examples, for a DataLoader."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import (  # pyright: ignore[reportMissingImports]
    DataLoader,
    IterableDataset,
    get_worker_info,
)

import fedeqx as fx


class GroupStream(IterableDataset):
    """The examples of a group stream; worker processes share the groups out among themselves."""

    def __init__(self, dataset: fx.data.GroupedDataset, *, seed: int):
        self.groups: Any = dataset.stream(seed=seed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        mine = self.groups if worker is None else self.groups[worker.id :: worker.num_workers]
        return (example for group in mine for example in group)


def main(workers: int = 0) -> tuple[list, list]:
    records = ({"user": f"user-{i % 5}", "number": i, "text": "hello " * i} for i in range(40))
    with tempfile.TemporaryDirectory() as folder:
        dataset = fx.data.group(records, by="user", out=Path(folder) / "grouped")
        processes: dict[str, Any] = {"num_workers": workers}
        if workers:
            processes["multiprocessing_context"] = "spawn"

        # A group stream is a map-style data set as it is: its elements are groups.
        groups = DataLoader(dataset.stream(seed=1), batch_size=None, **processes)
        order = [(group.id, len(group)) for group in groups]
        print("groups:", *order)

        # Or examples, in batches of tensors.
        examples = DataLoader(GroupStream(dataset, seed=1), batch_size=8, **processes)
        numbers = [number for batch in examples for number in batch["number"].tolist()]
        print("examples:", *numbers)
        return order, numbers


if __name__ == "__main__":
    main(workers=2)
