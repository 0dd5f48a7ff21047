"""Streaming a cohort: memory and time of a FedAvg round, against drjax and `jax.lax.map`.

The round is that of `core.py`: 4 local SGD steps (batch 8, sequence 64) of the demo's transformer.
All take the same client function, compiled by the same JAX in the same process; runs take turns,
and the table gives medians. `nox -s bench -- stream`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

COHORTS = (8, 32, 128, 1024)
AT_ONCE = 8
TIMED_COHORT = 16
TIMED_AT_ONCE = (1, 2, 4, 8)
MEMORY_LIMIT = 0.15
HOST_COHORTS = (100, 10_000)
STREAMED = ("round", "hypergradient", "lax.map")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["memory", "time", "host"], help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.part == "memory":
        measure_memory()
    elif arguments.part == "time":
        measure_time(arguments.repeats)
    elif arguments.part == "host":
        measure_host(arguments.clients)
    else:
        return report(arguments.repeats)
    return 0


def report(repeats: int) -> int:
    from _report import judge, show, show_machine

    show_machine("fedeqx", "drjax", "jax")
    memory = child("memory")
    names = ["round", "hypergradient", "round, drjax", "round, lax.map"]
    show(
        f"Temporary MiB by cohort size, {AT_ONCE} clients at once",
        ["", *map(str, COHORTS), "last / first"],
        [
            [name, *(f"{x / 2**20:,.0f}" for x in row), f"{row[-1] / row[0]:.2f}"]
            for name, row in ((name, memory[name]) for name in names)
        ],
    )
    timed = child("time", f"--repeats={repeats}")
    theirs = timed.pop("drjax")
    ratios = {
        name: statistics.median(a / b for a, b in zip(t["run"], theirs["run"], strict=True))
        for name, t in timed.items()
    }
    show(
        f"A round of {TIMED_COHORT} clients (seconds; ratios to drjax)",
        ["", "run", "ratio", "compile", "temp MiB", "ratio"],
        [
            [
                name,
                f"{statistics.median(t['run']):.3f}",
                f"{ratios.get(name, 1):.3f}",
                f"{t['compile']:.2f}",
                f"{t['temporary'] / 2**20:.0f}",
                f"{t['temporary'] / theirs['temporary']:.3f}",
            ]
            for name, t in {**timed, "drjax": theirs}.items()
        ],
    )
    shares = {name: t["temporary"] / theirs["temporary"] for name, t in timed.items()}
    streamed = [name for name in timed if name.startswith("stream")]
    # Both limits are to hold at one number at once: the fastest of those that save the memory.
    small = [name for name in streamed if shares[name] <= MEMORY_LIMIT]
    best = min(small or streamed, key=lambda name: ratios[name])
    host = {n: child("host", f"--clients={n}") for n in HOST_COHORTS}
    show(
        "A cohort from the host (one local step on one short sequence each)",
        ["clients", "seconds", "clients/s", "peak RSS MiB"],
        [
            [f"{n:,}", f"{h['seconds']:.1f}", f"{n / h['seconds']:.0f}", f"{h['rss'] / 2**20:.0f}"]
            for n, h in host.items()
        ],
    )
    few, many = (host[n]["rss"] for n in HOST_COHORTS)
    kept = judge(
        [
            ("round's memory, 1024 to 8 clients", growth(memory["round"]), 1.2),
            ("hypergradient's memory, 1024 to 8", growth(memory["hypergradient"]), 1.5),
            (f"run time to drjax's, {best}", ratios[best], 0.95),
            (f"memory to drjax's, {best}", shares[best], MEMORY_LIMIT),
            ("peak RSS, 10,000 to 100 clients", many / few, 1.1),
            ("largest difference of any parameter", timed[best]["difference"], 1e-5),
        ]
    )
    return 0 if kept else 1


def growth(row: list[int]) -> float:
    return row[-1] / row[0]


def child(part: str, *arguments: str) -> dict:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    done = subprocess.run(
        [sys.executable, __file__, f"--part={part}", *arguments],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure_memory() -> None:
    import jax

    results: dict[str, list[int]] = {}
    for cohort in COHORTS:
        programs, arguments = build(cohort)
        for name in ("round", "hypergradient", "drjax", "lax.map"):
            program = programs[f"{name}, {AT_ONCE}" if name in STREAMED else name]
            compiled = jax.jit(program).lower(*arguments).compile()
            key = f"round, {name}" if name in ("drjax", "lax.map") else name
            memory = compiled.memory_analysis()
            assert memory is not None
            results.setdefault(key, []).append(memory.temp_size_in_bytes)
    print(json.dumps(results))


def measure_time(repeats: int) -> None:
    import jax
    import numpy as np

    programs, arguments = build(TIMED_COHORT)
    chosen = {"drjax": programs["drjax"], "all at once": programs["all at once"]}
    chosen |= {f"stream, {k} at once": programs[f"round, {k}"] for k in TIMED_AT_ONCE}
    chosen |= {f"lax.map, batch {k}": programs[f"lax.map, {k}"] for k in TIMED_AT_ONCE}
    results, compiled, outputs = {}, {}, {}
    for name, program in chosen.items():
        jax.clear_caches()
        began = time.perf_counter()
        compiled[name] = jax.jit(program).lower(*arguments).compile()
        seconds = time.perf_counter() - began
        memory = compiled[name].memory_analysis()
        assert memory is not None
        results[name] = {"compile": seconds, "temporary": memory.temp_size_in_bytes, "run": []}
        outputs[name] = jax.block_until_ready(compiled[name](*arguments))
    for i in range(repeats):
        order = list(compiled)
        for name in order[i % len(order) :] + order[: i % len(order)]:
            began = time.perf_counter()
            jax.block_until_ready(compiled[name](*arguments))
            results[name]["run"].append(time.perf_counter() - began)
    for name, output in outputs.items():
        pairs = zip(jax.tree.leaves(output), jax.tree.leaves(outputs["drjax"]), strict=True)
        results[name]["difference"] = max(
            float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs
        )
    print(json.dumps(results))


def measure_host(clients: int) -> None:
    """The chunks are made when they are asked for: nothing holds the cohort."""
    import grain
    import jax
    import numpy as np

    import fedeqx as fx

    parameters, _, local_sgd = client_work()

    def chunk(number: int) -> fx.Clients:
        rng = np.random.default_rng(number)
        rows = min(AT_ONCE * 4, clients - number * AT_ONCE * 4)
        tokens = rng.integers(0, 256, (rows, 1, 1, 17)).astype(np.int32)
        return fx.Clients({"tokens": tokens, "mask": np.ones((rows, 1, 1, 16), bool)})

    count = -(-clients // (AT_ONCE * 4))
    chunks = grain.MapDataset.source(range(count)).map(chunk).to_iter_dataset()
    step = fx.stream(lambda p, d: fx.reduce_mean(fx.client_map(local_sgd, p, d)))
    began = time.perf_counter()
    jax.block_until_ready(step(parameters, fx.HostClients(chunks, size=clients)))
    seconds = time.perf_counter() - began
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "rss": rss}))


def client_work():
    """The demo's transformer, and local SGD with it."""
    import equinox as eqx
    import jax

    import fedeqx as fx

    model = fx.nn.Transformer(fx.nn.TransformerConfig.preset("tiny"), key=jax.random.key(0))
    parameters, static = eqx.partition(model, eqx.is_array)

    def local_sgd(parameters, batches, rate=0.1):
        def step(parameters, batch):
            loss = lambda p: fx.nn.next_token_loss(eqx.combine(p, static), batch)
            gradient = jax.grad(loss)(parameters)
            return jax.tree.map(lambda p, g: p - rate * g, parameters, gradient), None

        trained, _ = jax.lax.scan(step, parameters, batches)
        return jax.tree.map(lambda new, old: new - old, trained, parameters)

    return parameters, static, local_sgd


def build(cohort: int):
    """Functions of (parameters, data), and these arguments."""
    import drjax  # pyright: ignore[reportMissingImports]
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    from core import BATCH, SEQUENCE, STEPS

    import fedeqx as fx

    parameters, static, local_sgd = client_work()
    rng = np.random.default_rng(0)
    shape = (cohort, STEPS, BATCH, SEQUENCE)
    data = {
        "tokens": rng.integers(0, 256, (*shape[:3], SEQUENCE + 1)).astype(np.int32),
        "mask": np.ones(shape, bool),
    }

    def moved(parameters, update):
        return jax.tree.map(lambda p, u: p + u, parameters, update)

    def ours(parameters, data, rate=0.1):
        update = fx.reduce_mean(fx.client_map(local_sgd, parameters, fx.Clients(data), rate))
        return moved(parameters, update)

    def loss_after(rate, parameters, data):
        def loss(parameters, batches):
            first = jax.tree.map(lambda x: x[0], batches)
            return fx.nn.next_token_loss(eqx.combine(parameters, static), first)

        new = ours(parameters, data, rate)
        return fx.reduce_mean(fx.client_map(loss, new, fx.Clients(data)))

    def streamed(fn, k, argnums=()):
        placed = lambda *args: fn(*args[:-1], args[-1].value)
        run = fx.stream(jax.grad(placed, argnums) if argnums else placed, at_once=k)
        return run

    @drjax.program(placements={"clients": cohort})
    def theirs(parameters, data):
        update = drjax.reduce_mean(drjax.map_fn(local_sgd, (drjax.broadcast(parameters), data)))
        return moved(parameters, update)

    def mapped(k):
        def run(parameters, data):
            updates = jax.lax.map(lambda d: local_sgd(parameters, d), data, batch_size=k)
            return moved(parameters, jax.tree.map(lambda u: u.mean(0), updates))

        return run

    programs = {"drjax": theirs, "all at once": ours}
    for k in sorted({AT_ONCE, *TIMED_AT_ONCE}):
        programs[f"round, {k}"] = lambda p, d, k=k: streamed(ours, k)(p, fx.Clients(d))
        programs[f"hypergradient, {k}"] = lambda p, d, k=k: streamed(loss_after, k, (0,))(
            jnp.float32(0.1), p, fx.Clients(d)
        )
        programs[f"lax.map, {k}"] = mapped(k)
    return programs, (parameters, data)


if __name__ == "__main__":
    raise SystemExit(main())
