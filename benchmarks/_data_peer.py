"""What dataset-grouper does in the benchmarks of data. Runs in its own environment, Python 3.10.

Each command is one process: `prepare` makes the TFDS data set that the library reads, and is not
counted; `group`, `documented` (the loop of its README) and `batched` (an array for each group) are.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    command, *arguments = sys.argv[1:]
    commands = {"prepare": prepare, "group": group, "documented": documented, "batched": batched}
    print(json.dumps(commands[command](*arguments)))


def prepare(source: str, folder: str) -> dict:
    import pyarrow.parquet as pq
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    def examples():
        number = 0
        for batch in pq.ParquetFile(source).iter_batches():
            for example in batch.to_pylist():
                yield number, example
                number += 1

    tfds.disable_progress_bar()
    builder = tfds.dataset_builders.AdhocBuilder(
        name="text",
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {"group": tfds.features.Text(), "text": tfds.features.Text()}
        ),
        split_datasets={"train": examples()},
        data_dir=folder,
        disable_shuffling=True,
    )
    builder.download_and_prepare()
    return {"folder": str(builder.data_dir)}


def group(folder: str, out: str) -> dict:
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    import dataset_grouper  # pyright: ignore[reportMissingImports]
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    Path(out).mkdir(parents=True)
    pipeline = dataset_grouper.tfds_to_tfrecords(
        dataset_builder=tfds.builder_from_directory(folder),
        split="train",
        get_key_fn=lambda example: example["group"].numpy(),
        file_path_prefix=f"{out}/groups",
        num_shards=0,
    )
    with beam.Pipeline() as root:
        pipeline(root)
    return {}


def documented(folder: str, out: str) -> dict:
    stream, number, examples, text_bytes = _stream(folder, out), 0, 0, 0
    rss = Rss()
    for number, examples_of_group in enumerate(stream):
        for example in examples_of_group.as_numpy_iterator():
            examples += 1
            text_bytes += len(example["text"])
            if not examples % 2048:
                rss.see(number, examples)
    return {"examples": examples, "text_bytes": text_bytes, **rss.told(number + 1, examples)}


def batched(folder: str, out: str) -> dict:
    number, examples, text_bytes = 0, 0, 0
    arrays = _stream(folder, out).flat_map(
        lambda examples_of_group: examples_of_group.batch(1 << 30)
    )
    rss = Rss()
    for number, batch in enumerate(arrays.as_numpy_iterator()):
        examples += len(batch["text"])
        text_bytes += sum(map(len, batch["text"]))
        rss.see(number, examples)
    return {"examples": examples, "text_bytes": text_bytes, **rss.told(number + 1, examples)}


def _stream(folder: str, out: str):
    import dataset_grouper  # pyright: ignore[reportMissingImports]
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    features = tfds.builder_from_directory(folder).info.features
    partitioned = dataset_grouper.PartitionedDataset(f"{out}/groups*", tfds_features=features)
    return partitioned.build_group_stream()


class Rss:
    """Anonymous RSS by how far a program has come."""

    def __init__(self):
        self._seen: list = []
        self.see(0, 0)

    def see(self, groups: int, examples: int) -> None:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("RssAnon"))
        self._seen.append((groups, examples, int(line.split()[1]) * 1024))

    def told(self, groups: int, examples: int) -> dict:
        """After the first 1% of the groups (of one: its examples): what it was, and the most; how
        far that is above what it was before the first."""
        by = 0 if groups > 1 else 1
        first = max(groups, 1 if by == 0 else examples) / 100
        seen = [entry[2] for entry in self._seen if entry[by] >= first]
        highest = max(seen)
        return {
            "level": seen[0],
            "highest": highest,
            "growth": highest - seen[0],
            "rise": highest - self._seen[0][2],
        }


if __name__ == "__main__":
    main()
