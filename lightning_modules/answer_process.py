"""What the commands ask about a run before it starts, answered in a process of its own."""

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from lightning_modules.memory.short_run import find_block_error, find_error
from lightning_modules.memory.trace import memory_trace
from lightning_modules.process.output import redirect_output
from lightning_modules.process.user_errors import describe_error
from lightning_modules.trial.measured_facts import facts
from sweeper.spec.config import run_config
from sweeper.upstream.torchs import join_fake_ranks


def answer_question(
    question: str, configs: Sequence[Mapping[str, Any]], answers: Path, output: Path
) -> None:
    """Append a line of JSON to `answers` for each config; what is printed goes to `output`.

    For sharpness, each is a mapping of `config` and `at`, the checkpoint.

    At the first error this process exits; the error is then the last line of `output`.
    """
    redirect_output(output)
    for config in configs:
        try:
            if question == "facts":
                answer = facts(config)
            elif question == "first steps":
                answer = find_error(run_config(config))
            elif question == "blocks":
                answer = find_block_error(run_config(config))
            elif question == "sharpness":
                # curvlinops may not be installed
                from lightning_modules.curvature.hessian import measure_sharpness

                answer = measure_sharpness(run_config(config["config"]), Path(config["at"]))
            else:  # a trace has a group of ranks; gradients are exchanged as in a run of several
                run = run_config(config)
                if run.is_sharded:
                    join_fake_ranks(run.world_size)
                else:
                    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
                answer = memory_trace(run).model_dump(mode="json")
            line = json.dumps(answer)
        except Exception as error:  # noqa: BLE001  whatever the user's code raises
            traceback.print_exc()
            print(describe_error(error), file=sys.stderr)  # noqa: T201  the last line is reported
            sys.exit(1)
        with answers.open("a") as file:
            file.write(f"{line}\n")
