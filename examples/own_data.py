"""Your own records, grouped by user, on disk and back as cohorts of clients."""

import tempfile
from pathlib import Path

import fedeqx as fx


def records():
    """Anything that yields dicts; it is read once, and may be larger than memory."""
    for i in range(300):
        yield {"user": f"user-{i % 7}", "text": f"message {i}: " + "hello " * (i % 5)}


def main() -> list:
    with tempfile.TemporaryDirectory() as folder:
        dataset = fx.data.group(records(), by="user", out=Path(folder) / "grouped")
        print(dataset.num_groups, "groups of", dataset.num_examples, "examples")

        one = dataset.group("user-3")  # by id
        print(one.id, "has", len(one), "examples; the first:", next(iter(one)))

        order = [group.id for group in dataset.stream(seed=1)]  # every group, in a seeded order
        print("streamed:", *order)

        cohorts = fx.data.cohorts(
            dataset, size=3, steps=2, batch_size=4, sequence_length=32, seed=0
        )
        cohort = cohorts[5]  # round 5, whatever was read before
        print("round 5:", *cohort.ids, cohort.batches["tokens"].shape, cohort.num_examples)
        return order


if __name__ == "__main__":
    main()
