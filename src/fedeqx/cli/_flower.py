"""`fedeqx flower`: an exported plan as a Flower app."""

import argparse

from ._errors import explained


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser(
        "flower",
        help="make a Flower app of an exported plan",
        description="Runs federated programs on Flower.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser(
        "build",
        help="write an app for `flwr run`",
        description=(
            "Writes a Flower app that evaluates a plan's server stages in its ServerApp and its "
            "client stages in its ClientApp, on each node's own grouped data."
        ),
    )
    build.add_argument("plan", metavar="PLAN", help="the folder of `fedeqx plan --export`")
    build.add_argument(
        "--config",
        metavar="FILE",
        required=True,
        help="TOML: folder, rounds, carry, min-nodes, wait-seconds, round-seconds, data-key, "
        "clients-per-node, epochs, seed",
    )
    build.add_argument("--out", metavar="APP", required=True, help="the app's folder, a new one")
    build.add_argument(
        "--clients",
        metavar="MODULE:FUNCTION",
        help="what gives a node's clients there; by default its grouped data",
    )


def run(arguments: argparse.Namespace) -> int:
    from ..federated import PlanError
    from ..federated.backends.flower import DEFAULT_CLIENTS, build, read_settings_file

    with explained(PlanError, ImportError, ValueError):
        settings = read_settings_file(arguments.config)
        app = build(
            arguments.plan, arguments.out, settings, clients=arguments.clients or DEFAULT_CLIENTS
        )
    print(
        f"The app is in {app}. On the server's machine, put the server's arguments at "
        f"{settings.folder}/arguments.npz; then `flwr run {app}`."
    )
    return 0
