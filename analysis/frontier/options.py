"""The options of `python -m analysis frontier`."""

import argparse
from pathlib import Path
from typing import get_args

from analysis.frontier.machines import find_presets
from sweeper.console.printing import positive_number, whole_number
from sweeper.planning.exchange import Algorithm


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.epilog = (
        "For example: python -m analysis frontier results --cluster summit --target 0.9; "
        "docs/frontier.md explains the answer."
    )
    parser.add_argument(
        "--cluster", metavar="NAME",
        help="the machines to compare batches on, which need not be there: a file of conf/cluster "
        f"that describes their nodes and links ({', '.join(find_presets())}), or of your own",
    )  # fmt: skip
    parser.add_argument(
        "--config-dir", type=Path, action="append", default=[], metavar="DIR",
        help="a folder whose folder cluster holds your own descriptions",
    )  # fmt: skip
    parser.add_argument(
        "--target", type=float, help="metric level that counts as trained; an accuracy from 0 to 1"
    )
    parser.add_argument(
        "--devices",
        type=whole_number(1, 2**31),
        help="number of devices; default: the fastest for each batch",
    )
    parser.add_argument(
        "--examples-per-s",
        help="of a device: 367, or by micro-batch 16:290,128:367; default: as in the runs",
    )
    parser.add_argument(
        "--steps",
        help="steps to the target by batch, such as 3200:14014,20480:3128, in place of runs",
    )
    parser.add_argument(
        "--parameters",
        type=whole_number(1, 2**63 - 1),
        help="number in the model, if no runs are read",
    )
    parser.add_argument(
        "--gradient-bytes", type=whole_number(1, 8),
        help="exchanged per parameter; default: from the runs' precision, 4 with --steps",
    )  # fmt: skip
    parser.add_argument(
        "--evaluation-share", type=float,
        help="as a fraction of training time; default: as in the runs, 0 with --steps",
    )  # fmt: skip
    parser.add_argument(
        "--exchange", choices=get_args(Algorithm), help="default: the faster of ring and tree"
    )
    parser.add_argument(
        "--price", type=positive_number, help="of a device-hour; default: the preset's"
    )
