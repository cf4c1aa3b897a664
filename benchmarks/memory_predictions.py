"""Predicted memory beside what runs took, for models, optimizers, precisions and micro-batches.

    python benchmarks/memory_predictions.py [--cases resnet18,vit]

Each case is traced, which trains nothing, then trained for 2 epochs of 2 steps of 2 micro-batches
in a fresh process, through the sweep's own launcher; on a GPU if there is one. On a CPU the peak is
of the whole process, on a GPU of the tensors.
"""

import argparse
import statistics
import tempfile

from sweeper.commands.show_plan import plan_grid
from sweeper.launch.fork_server import open_fork_server
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import find_device, inspect_machine
from sweeper.launch.memory_trace import trace_memory
from sweeper.planning.plan import claim_tasks
from sweeper.spec.run_memory import DEVICE
from sweeper.store.memory_cache import MemoryCache

BASE = ("warmup=0", "schedule=constant", "epochs=2", "base_lr=0.001", "bn_span=8")
SMALL = ("data.shape=[3,32,32]", "data.num_classes=10")
LARGE = ("data.shape=[3,224,224]", "data.num_classes=1000")
SAM = ("perturbation=sam", "perturbation.gradient_span=8")
HEADS = "model optimizer precision micro-batch tensors beside predicted peak error"
#: Model, optimizer, precision, micro-batch, and more words.
CASES: list[tuple[str, str, str, int, tuple[str, ...]]] = [
    ("small_cnn", "sgd", "32-true", 1024, SMALL),
    ("resnet8", "sgd", "32-true", 256, SMALL),
    ("resnet8", "lars", "bf16-mixed", 512, SMALL),
    ("resnet20", "nesterov", "32-true", 512, SMALL),
    ("resnet20", "adam", "64-true", 256, (*SMALL, "ema_decay=0.99")),
    ("resnet18", "sgd", "32-true", 64, SMALL),
    ("resnet18", "adamw", "bf16-mixed", 128, SMALL),
    ("resnet18", "lamb", "64-true", 32, SMALL),
    ("resnet50", "lars", "32-true", 32, SMALL),
    ("resnet50", "sgd", "32-true", 8, LARGE),
    (
        "resnet50",
        "sgd",
        "bf16-mixed",
        8,
        (*SMALL, "perturbation=sam", "perturbation.gradient_span=8"),
    ),
    ("vit_b_16", "adamw", "32-true", 4, (*LARGE, "bn_span=1")),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="of models whose name has one of these words")
    wanted = parser.parse_args().cases.split(",")
    heads = HEADS.split()
    print(f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    errors: list[float] = []
    for model, optimizer, precision, micro_batch, more in CASES:
        if not any(word in model for word in wanted):
            continue
        words = [
            *BASE,
            *(f"model={model}", f"optimizer={optimizer}", f"precision={precision}"),
            *(f"micro_batch={micro_batch}", f"batch={2 * micro_batch}", "data=synthetic"),
            *(f"data.num_train_examples={4 * micro_batch}", f"data.num_val_examples={micro_batch}"),
            *more,
        ]
        classes, peak = _case(words)
        beside, predicted = classes[DEVICE], sum(classes.values())
        errors.append(predicted / peak - 1)
        print(
            f"| {model} | {optimizer} | {precision} | {micro_batch} | {predicted - beside:.3f} | "
            f"{beside:.3f} | {predicted:.3f} | {peak:.3f} | {errors[-1]:+.1%} |",
            flush=True,
        )
    print(f"\nMedian error: {statistics.median(map(abs, errors)):.1%}, of {len(errors)} cases.")


def _case(words: list[str]) -> tuple[dict[str, float], float]:
    """What a run was predicted to take by class, and what it took [GiB]."""
    with tempfile.TemporaryDirectory() as folder:
        planned, ledger = plan_grid([*words, f"results={folder}/results"], config_dir=None)
        (spec,) = planned.specs
        memory = MemoryCache(ledger.results, find_device(runs=1))
        open_fork_server()
        if why_not := trace_memory(spec, memory):
            raise SystemExit(why_not)
        classes = dict(memory.fit(spec).classes)
        ledger.prepare()
        to_do = claim_tasks(planned, ledger, retry=None, rerun=None)
        for _ in run_here(to_do, ledger, inspect_machine(jobs=1, runs_per_gpu=1)):
            pass
        row = ledger.rows({spec.run_id}, ["outcome", "reason", "peak_memory_gib"])[spec.run_id]
        if row["outcome"] != "finished":
            raise SystemExit(row["reason"])
        return classes, row["peak_memory_gib"]


if __name__ == "__main__":
    main()
