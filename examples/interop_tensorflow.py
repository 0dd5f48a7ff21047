"""Groups in tf.data: the examples of a group stream, or a data set of data sets."""

import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

import fedeqx as fx


def main() -> tuple[list, list]:
    records = ({"user": f"user-{i % 5}", "number": i, "text": "hello " * i} for i in range(40))
    with tempfile.TemporaryDirectory() as folder:
        dataset = fx.data.group(records, by="user", out=Path(folder) / "grouped")
        number, text = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.string)
        signature = {"user": text, "number": number, "text": text}

        # The examples of a stream of groups.
        stream = dataset.stream(seed=1)
        examples = tf.data.Dataset.from_generator(
            lambda: (example for group in stream for example in group), output_signature=signature
        )
        batches: Any = examples.batch(8).as_numpy_iterator()
        numbers = [int(number) for batch in batches for number in batch["number"]]
        print("examples:", *numbers)

        # The groups, each a data set of its own.
        ids: Any = tf.data.Dataset.from_generator(
            lambda: (group.id for group in stream), output_signature=text
        )
        sizes = []
        for group_id in ids.as_numpy_iterator():
            group = dataset.group(group_id.decode())
            own = tf.data.Dataset.from_generator(
                lambda g=group: iter(g), output_signature=signature
            )
            sizes.append((group.id, sum(1 for _ in own)))
        print("groups:", *sizes)
        return sizes, numbers


if __name__ == "__main__":
    main()
