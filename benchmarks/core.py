"""A FedAvg round in fedeqx and in drjax: compile time, run time, memory, collectives.

Both do 4 local SGD steps (batch 8, sequence 64) of the demo's transformer on the same parameters
and data, with the same client function, compiled by the same JAX in the same process; runs take
turns, and the table gives medians. `nox -s bench -- core`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

COHORTS = (1, 4, 16, 32)
DEVICES = (1, 4)
STEPS, BATCH, SEQUENCE = 4, 8, 64
COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)\(")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cohorts", type=int, nargs="+", default=COHORTS)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.devices:
        measure(arguments.devices, arguments.cohorts, arguments.repeats)
        return 0

    from _report import judge, show, show_machine

    show_machine("fedeqx", "drjax", "jax")
    results = []
    for devices in DEVICES:
        flags = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        )
        child = subprocess.run(
            [
                sys.executable,
                __file__,
                f"--devices={devices}",
                f"--repeats={arguments.repeats}",
                "--cohorts",
                *map(str, arguments.cohorts),
            ],
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        results += [json.loads(line) for line in child.stdout.splitlines()]
    rows, run_ratios, compile_ratios = [], [], []
    for r in results:
        ours, theirs = r["fedeqx"], r["drjax"]
        run_ratios.append(
            statistics.median(a / b for a, b in zip(ours["run"], theirs["run"], strict=True))
        )
        compile_ratios.append(
            statistics.median(ours["compile"]) / statistics.median(theirs["compile"])
        )
        rows.append(
            [
                f"{r['devices']} devices, {r['cohort']} clients",
                *(f"{statistics.median(x['run']):.3f}" for x in (ours, theirs)),
                f"{run_ratios[-1]:.3f}",
                *(f"{statistics.median(x['compile']):.2f}" for x in (ours, theirs)),
                f"{compile_ratios[-1]:.3f}",
                *(f"{x['temporary'] / 2**20:.0f}" for x in (ours, theirs)),
                *(str(x["collectives"]) for x in (ours, theirs)),
                f"{r['difference']:.1e}",
            ]
        )
    show(
        "A FedAvg round (run and compile in seconds; ratio fedeqx / drjax)",
        [
            "",
            "run",
            "drjax",
            "ratio",
            "compile",
            "drjax",
            "ratio",
            "temp MiB",
            "drjax",
            "collectives",
            "drjax",
            "difference",
        ],
        rows,
    )
    kept = judge(
        [
            ("largest difference of any parameter", max(r["difference"] for r in results), 1e-5),
            ("run time, median of the ratios", statistics.median(run_ratios), 1.0),
            ("compile time, median of the ratios", statistics.median(compile_ratios), 1.1),
        ]
    )
    return 0 if kept else 1


def measure(devices: int, cohorts: list[int], repeats: int) -> None:
    """Prints a line of JSON for each cohort size."""
    import contextlib

    import jax
    import numpy as np

    for cohort in cohorts:
        programs, arguments = build(cohort)
        mesh = contextlib.nullcontext()
        if devices > 1:
            axis = (jax.sharding.AxisType.Auto,)
            mesh = jax.set_mesh(jax.make_mesh((devices,), ("clients",), axis_types=axis))
        with mesh:
            result: dict = {name: {"compile": [], "run": []} for name in programs}
            compiled = {}
            for _ in range(3):
                for name, program in programs.items():
                    jax.clear_caches()
                    began = time.perf_counter()
                    # A new function each time: JAX must trace again.
                    compiled[name] = (
                        jax.jit(lambda *a, p=program: p(*a)).lower(*arguments).compile()
                    )
                    result[name]["compile"].append(time.perf_counter() - began)
            outputs = {}
            for name, fn in compiled.items():
                outputs[name] = jax.block_until_ready(fn(*arguments))
                result[name]["temporary"] = fn.memory_analysis().temp_size_in_bytes
                result[name]["collectives"] = len(COLLECTIVE.findall(fn.as_text()))
            for i in range(repeats):
                # In turn, and the first of a pair in turn as well.
                for name in sorted(compiled, reverse=i % 2 == 1):
                    began = time.perf_counter()
                    jax.block_until_ready(compiled[name](*arguments))
                    result[name]["run"].append(time.perf_counter() - began)
        difference = max(
            float(np.abs(np.asarray(a) - np.asarray(b)).max())
            for a, b in zip(*(jax.tree.leaves(x) for x in outputs.values()), strict=True)
        )
        print(
            json.dumps({"devices": devices, "cohort": cohort, "difference": difference, **result})
        )


def build(cohort: int):
    """The round in both libraries, as functions of (parameters, data)."""
    import drjax  # pyright: ignore[reportMissingImports]
    import equinox as eqx
    import jax
    import numpy as np
    from jaxtyping import Array, PyTree

    import fedeqx as fx

    model = fx.nn.Transformer(fx.nn.TransformerConfig.preset("tiny"), key=jax.random.key(0))
    parameters, static = eqx.partition(model, eqx.is_array)
    rng = np.random.default_rng(0)
    shape = (cohort, STEPS, BATCH, SEQUENCE)
    data = {
        "tokens": rng.integers(0, 256, (*shape[:3], SEQUENCE + 1)).astype(np.int32),
        "mask": np.ones(shape, bool),
    }

    def local_sgd(parameters, batches):
        def step(parameters, batch):
            def loss(parameters):
                return fx.nn.next_token_loss(eqx.combine(parameters, static), batch)

            gradient = jax.grad(loss)(parameters)
            return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient), None

        trained, _ = jax.lax.scan(step, parameters, batches)
        return jax.tree.map(lambda new, old: new - old, trained, parameters)

    @fx.program
    def ours(
        parameters: fx.Server[PyTree[Array]], data: fx.Clients[PyTree[Array]]
    ) -> fx.Server[PyTree[Array]]:
        update = fx.reduce_mean(fx.client_map(local_sgd, parameters, data))
        return jax.tree.map(lambda p, u: p + u, parameters, update)

    @drjax.program(placements={"clients": cohort})
    def theirs(parameters, data):
        update = drjax.reduce_mean(drjax.map_fn(local_sgd, (drjax.broadcast(parameters), data)))
        return jax.tree.map(lambda p, u: p + u, parameters, update)

    return {"fedeqx": lambda p, d: ours(p, fx.Clients(d)), "drjax": theirs}, (parameters, data)


if __name__ == "__main__":
    raise SystemExit(main())
