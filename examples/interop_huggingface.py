"""Groups in Hugging Face datasets: the examples of a group stream, lazily or as a table."""

import tempfile
from pathlib import Path

import datasets  # pyright: ignore[reportMissingImports]

import fedeqx as fx


def main() -> tuple[list, list]:
    records = ({"user": f"user-{i % 5}", "number": i, "text": "hello " * i} for i in range(40))
    with tempfile.TemporaryDirectory() as folder:
        dataset = fx.data.group(records, by="user", out=Path(folder) / "grouped")
        stream = dataset.stream(seed=1)

        # Read as it is iterated.
        lazy = datasets.IterableDataset.from_generator(lambda: (e for g in stream for e in g))
        numbers = [example["number"] for example in lazy]
        print("examples:", *numbers)

        # Written to a table of its own, once.
        table = datasets.Dataset.from_generator(
            lambda: (e for g in stream for e in g), cache_dir=str(Path(folder) / "cache")
        )
        users = table["user"]
        order = [(user, users[:].count(user)) for user in dict.fromkeys(users)]
        print("groups:", *order)
        return order, numbers


if __name__ == "__main__":
    main()
