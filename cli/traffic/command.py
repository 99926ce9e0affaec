"""`whyidle traffic`: the bytes that a training moves, by formulas, and as the ranks and adapters of a run count
them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from ...advisor.traffic import prediction
from ...advisor.traffic.deadline import SWITCH, Deadline, switch_days
from ...advisor.traffic.prediction import Prediction
from ...advisor.traffic.published_figures import DEADLINE
from ...advisor.traffic.shape import Model, Parallel, ShapeError
from ...ledger.directory import ledger_dir
from ..agent import DEFAULT_ADDRESS
from ..durations import duration
from ..quantities import count, positive, ranks, rate
from . import live, publication, text

ALGORITHMS = ("ring", "tree")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("what is trained", "Numbers as 178000, 156e9 or 70B.")
    model.add_argument("--parameters", type=count, metavar="P")
    model.add_argument("--batches", type=count, metavar="N", help="optimizer steps per epoch")
    model.add_argument("--tokens", type=count, metavar="T", help="tokens per epoch")
    model.add_argument("--layers", type=count, metavar="L")
    model.add_argument("--hidden", type=count, metavar="H", help="size of an activation of one token")
    model.add_argument("--epochs", type=count, help="epochs of the job (default: 1; with --published: 100)")
    model.add_argument(
        "--element-bytes", type=count, default="2", help="bytes of an element (default: %(default)s, bf16)"
    )
    model.add_argument("--gradient-bytes", type=count, help="the same for gradients (default: --element-bytes)")
    model.add_argument(
        "--expert-parameters", type=count, metavar="P", help="how many of --parameters belong to experts"
    )
    model.add_argument("--moe-layers", type=count, metavar="L", help="how many of --layers have experts (default: all)")
    model.add_argument("--top-k", type=count, default="1", help="experts for each token (default: %(default)s)")
    _add_parallel(parser)
    place = parser.add_argument_group("what it runs on", "Rates as 400Gbit/s or 50GB/s, each way.")
    place.add_argument("--gpus-per-node", type=ranks, default="8", help="default: %(default)s")
    place.add_argument("--algorithm", choices=ALGORITHMS, default="ring", help="for all-reduces (default: %(default)s)")
    place.add_argument(
        "--link", type=rate, metavar="RATE", help="rate of one link of a node, to compute the least time"
    )
    place.add_argument("--links-per-node", type=ranks, help="links of a node (default: one for each GPU)")
    place.add_argument("--inside-link", type=rate, metavar="RATE", help="rate from a GPU to the other GPUs of its node")
    place.add_argument(
        "--step-time", type=duration, metavar="TIME", help="print how fast the links must be for steps of this time"
    )
    place.add_argument(
        "--days", type=positive, metavar="D", help="print how many switches the job needs to end within this many days"
    )
    place.add_argument(
        "--switch-tbps", type=positive, metavar="R", help=f"Tbit/s of one switch, with --days (default: {SWITCH})"
    )
    storage = parser.add_argument_group("storage")
    storage.add_argument(
        "--token-bytes", type=count, default="4", help="bytes of a token in storage (default: %(default)s)"
    )
    storage.add_argument("--save-every", type=count, metavar="STEPS", help="steps between two checkpoints")
    storage.add_argument(
        "--checkpoint-bytes",
        type=count,
        default="14",
        help="bytes of a parameter in a checkpoint (default: %(default)s: bf16, and Adam's three copies in fp32)",
    )
    run = parser.add_argument_group("a run of this machine", "Its shape is read from its ledgers if possible.")
    run.add_argument("--run", dest="run_name", metavar="RUN", help="compare with what this run really sends")
    run.add_argument("--seconds", type=duration, default="10s", help="how long to measure it (default: 10s)")
    run.add_argument("--dir", default=ledger_dir(), help="where its ledgers are (default: %(default)s)")
    run.add_argument("--owner", help="owner of the run, if several owners have a run with this name")
    run.add_argument(
        "--agent",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help="which agent to ask for the node's adapters (default: %(default)s)",
    )
    parser.add_argument("--published", action="store_true", help="show a published estimate, computed again")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_parallel(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is spread over ranks", "Sizes of the groups; the default is 1.")
    for option, what in (
        ("--dp", "replicas (DDP, or the replicas of hybrid sharding)"),
        ("--fsdp", "ranks that FSDP or ZeRO shards over"),
        ("--tp", "tensor parallel ranks"),
        ("--sp", "ranks that DeepSpeed-Ulysses splits sequences over"),
        ("--ep", "ranks that experts are spread over, among the data parallel ones"),
        ("--pp", "pipeline stages"),
    ):
        group.add_argument(option, type=ranks, metavar="G", help=what)
    group.add_argument("--zero", type=int, choices=(1, 2, 3), default=3, help="ZeRO's stage (default: 3, FSDP)")
    group.add_argument(
        "--microbatches", type=ranks, default="1", metavar="M", help="microbatches of a step (default: %(default)s)"
    )
    group.add_argument(
        "--sequence-parallel", action="store_true", help="Megatron's, with tensor parallelism (--sp is different)"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0; 1 if a run cannot be measured; 2 if the shape does not fit together."""
    if args.published:
        print(publication.published(_deadline(args, DEADLINE), args.json), end="")
        return 0
    try:
        if args.days and args.run_name:
            raise ShapeError("--days needs the bytes of an epoch, which a run does not tell: leave out --run")
        if args.switch_tbps and not args.days:
            raise ShapeError("--switch-tbps needs a deadline: give --days")
        if args.run_name:
            return live.run(args, _model(args), _parallel(args))
        if args.parameters is None or args.batches is None:
            raise ShapeError("give --parameters and --batches, or the name of a run with --run")
        report = predicted(args, _model(args), _parallel(args) or Parallel())
    except ShapeError as error:
        print(f"whyidle traffic: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2) + "\n" if args.json else text.predicted(report), end="")
    return 0


def _deadline(args: argparse.Namespace, unless_given: Deadline) -> Deadline:
    return Deadline(
        args.days or unless_given.days,
        args.epochs or unless_given.epochs,
        args.switch_tbps or unless_given.switch_tbps,
    )


def _model(args: argparse.Namespace) -> Model:
    return Model(
        parameters=args.parameters or 0.0,
        batches=args.batches or 1.0,
        tokens=args.tokens or 0.0,
        layers=args.layers or 0.0,
        hidden=args.hidden or 0.0,
        element=args.element_bytes,
        gradient=args.gradient_bytes or 0.0,
        expert_parameters=args.expert_parameters or 0.0,
        moe_layers=args.moe_layers or 0.0,
        top_k=args.top_k,
    )


def _parallel(args: argparse.Namespace) -> Parallel | None:
    """The shape from the options; None if they give no group size."""
    sizes = (args.dp, args.fsdp, args.tp, args.sp, args.ep, args.pp)  # in the order of SIZES
    if not any(sizes):
        return None
    return Parallel(
        *(size or 1 for size in sizes),
        zero=args.zero,
        split_norms=args.sequence_parallel,
        microbatches=args.microbatches,
    )


def predicted(args: argparse.Namespace, model: Model, parallel: Parallel) -> dict[str, object]:
    """The report as JSON. Bytes are per step, of all ranks, unless the field's name says otherwise. Raises
    ShapeError."""
    ways = {way: prediction.predict(model, parallel, args.gpus_per_node, way) for way in (args.algorithm, "mesh")}
    moved, mesh = ways[args.algorithm], ways["mesh"]
    stored = prediction.storage(model, args.save_every or 0.0, args.token_bytes, args.checkpoint_bytes)
    links = args.links_per_node or moved.gpus_per_node
    return {
        "parallel": asdict(parallel),
        "ranks": moved.ranks,
        "gpus_per_node": moved.gpus_per_node,
        "algorithm": args.algorithm,
        "steps_per_epoch": model.batches,
        "epochs": args.epochs or 1.0,
        "collectives": [
            {
                **asdict(row.calls),
                "bytes": row.total,
                "inside_bytes": row.inside,
                "across_bytes": row.across,
                "full_mesh_bytes": other.total,
            }
            for row, other in zip(moved.rows, mesh.rows, strict=True)
        ],
        "bytes": moved.total,
        "inside_bytes": moved.inside,
        "across_bytes": moved.across,
        "full_mesh_bytes": mesh.total,
        "node_inside_bytes": moved.node_inside,
        "node_across_bytes": moved.node_across,
        "storage": {
            "read_bytes": stored.read,
            "checkpoint_bytes": stored.save,
            "save_every_steps": stored.save_every,
            "written_bytes": stored.written,
        },
        "links_per_node": links,
        "link_bytes_per_second": args.link,
        "inside_link_bytes_per_second": args.inside_link,
        "least_seconds": moved.seconds(args.link, links, args.inside_link or 0.0) if args.link else None,
        "step_seconds": args.step_time,
        "needed_bytes_per_second": moved.link_for(args.step_time, links) if args.step_time else None,
        "deadline": _switches(args, model, moved, mesh) if args.days else None,
    }


def _switches(args: argparse.Namespace, model: Model, moved: Prediction, mesh: Prediction) -> dict[str, object]:
    """How many switches the job needs, by which bytes go through them."""
    deadline = _deadline(args, Deadline(args.days, 1.0))
    parts = {"across_nodes": moved.across, "both": moved.total, "full_mesh": mesh.total}
    epochs = {name: part * model.batches for name, part in parts.items()}
    return {
        **asdict(deadline),
        "switches": {name: deadline.switches(size) for name, size in epochs.items()},
        "switch_days_of_an_epoch": {name: switch_days(size, deadline.switch_tbps) for name, size in epochs.items()},
    }
