"""What fedeqx does in the benchmarks of data. Each command is one process that prints JSON."""

import json
import statistics
import sys
import time
from pathlib import Path

from _data_peer import Rss

import fedeqx as fx

COHORT, CLIENT_EXAMPLES = 100, 10


def main() -> None:
    command, *arguments = sys.argv[1:]
    commands = {
        "source": source,
        "group": group,
        "examples": examples,
        "batched": batched,
        "arrow": arrow,
        "make": make,
        "stream": stream,
        "random": random_groups,
        "cohort": cohort,
    }
    print(json.dumps(commands[command](*arguments)))


def source(path: str, examples: str, groups: str, mean_bytes: str) -> dict:
    """Not counted: the text that both libraries read."""
    from _data_text import write_source

    size = write_source(
        Path(path), examples=int(examples), groups=int(groups), mean_bytes=int(mean_bytes)
    )
    return {"text_bytes": size}


def group(path: str, out: str, memory_limit: str) -> dict:
    dataset = fx.data.group(path, by="group", out=out, memory_limit=memory_limit, overwrite=True)
    return {"examples": dataset.num_examples, "groups": dataset.num_groups}


def examples(folder: str, how: str) -> dict:
    """Every example as a dictionary, through the data set itself or through its Grain stream."""
    dataset = fx.data.open(folder)
    count = text_bytes = 0
    for group in dataset if how == "direct" else dataset.stream(shuffle=False):
        for example in group:
            count += 1
            text_bytes += len(example["text"])
    return {"examples": count, "text_bytes": text_bytes}


def batched(folder: str) -> dict:
    """The text of each group as NumPy arrays."""
    count = text_bytes = 0
    for group in fx.data.open(folder):
        for batch in group.batches():
            texts = batch.column("text").to_numpy(zero_copy_only=False)
            count += len(texts)
            text_bytes += sum(map(len, texts))
    return {"examples": count, "text_bytes": text_bytes}


def arrow(folder: str, repeats: str) -> dict:
    """Seconds of Arrow batches, whole and group by group, and of pyarrow itself, in turn."""
    import pyarrow.parquet as pq

    dataset = fx.data.open(folder)
    files = sorted(dataset.path.glob("*.parquet"))

    def ours() -> int:
        return sum(batch.num_rows for batch in dataset.batches())

    def by_group() -> int:
        return sum(batch.num_rows for group in dataset for batch in group.batches())

    def groups() -> int:
        """What going through the groups costs, nothing being read."""
        return sum(len(group) for group in dataset)

    def raw() -> int:
        return sum(
            batch.num_rows for file in files for batch in pq.ParquetFile(file).iter_batches()
        )

    def mapped() -> int:
        """The least that pyarrow can do: mapped files, a row group at a time, one thread."""
        opened = [pq.ParquetFile(file, memory_map=True, pre_buffer=False) for file in files]
        return sum(
            file.read_row_group(number, use_threads=False).num_rows
            for file in opened
            for number in range(file.num_row_groups)
        )

    programs = (ours, by_group, groups, raw, mapped)
    seconds: dict[str, list[float]] = {program.__name__: [] for program in programs}
    for _ in range(int(repeats)):
        for program in programs:
            began = time.perf_counter()
            assert program() == dataset.num_examples
            seconds[program.__name__].append(time.perf_counter() - began)
    return seconds


def make(folder: str, groups: str) -> dict:
    """Not counted: a data set of short texts, one and a half to a group."""
    import pyarrow as pa
    from _data_text import SCHEMA, batches

    number = int(groups)
    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(number * 3 // 2, number, 60))
    began = time.perf_counter()
    dataset = fx.data.group(reader, by="group", out=folder, overwrite=True)
    return {"examples": dataset.num_examples, "seconds": time.perf_counter() - began}


def stream(folder: str) -> dict:
    """Anonymous RSS while every example passes; of a single group, by its examples."""
    dataset = fx.data.open(folder)
    rss, every, count = Rss(), max(1, dataset.num_examples // 500), 0
    for number, group in enumerate(dataset):
        for _ in group:
            count += 1
            if not count % every:
                rss.see(number, count)
    return {"examples": count, **rss.told(len(dataset), count)}


def random_groups(folder: str, reads: str) -> dict:
    """Anonymous RSS while random groups are read by their id, and how long that takes."""
    import numpy as np

    dataset = fx.data.open(folder)
    numbers = np.random.default_rng(0).integers(0, len(dataset), int(reads)).tolist()
    rss, count, seconds = Rss(), 0, []
    for number, place in enumerate(numbers):
        group_id = dataset.ids()[place]
        began = time.perf_counter()
        count += sum(1 for _ in dataset.group(group_id))
        seconds.append(time.perf_counter() - began)
        rss.see(number, count)
    return {"seconds": statistics.median(seconds), **rss.told(len(numbers), count)}


def cohort(folder: str, clients: str, rounds: str) -> dict:
    """Seconds per client of ten examples, for each of some rounds of a hundred clients."""
    records = (
        {"client": number // CLIENT_EXAMPLES, "text": f"word{number} " * 25}
        for number in range(int(clients) * CLIENT_EXAMPLES)
    )
    dataset = fx.data.group(records, by="client", out=folder, overwrite=True)
    cohorts = fx.data.cohorts(
        dataset, size=COHORT, steps=8, batch_size=8, sequence_length=64, seed=0
    )
    seconds, cpu = [], []
    for number in range(int(rounds)):
        began, cpu_began = time.perf_counter(), time.process_time()
        assert cohorts[number].step_mask.any(1).all()
        seconds.append((time.perf_counter() - began) / COHORT)
        cpu.append((time.process_time() - cpu_began) / COHORT)
    return {"seconds": seconds, "cpu": cpu}


if __name__ == "__main__":
    main()
