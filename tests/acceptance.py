"""Trains each habit on several layouts and by a plain Trainer, beside what is guaranteed for it."""

import json
import math
import multiprocessing
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from lightning_modules.data.randomness import seed_everything
from lightning_modules.modules.components import instantiate_component
from lightning_modules.process.output import quieten
from lightning_modules.train import RankContext, train
from lightning_modules.trial import measured_facts
from sweeper.commands.user_facts import fill_config
from sweeper.spec.guarantee_names import SAME, missing
from sweeper.spec.run_spec import run_spec
from sweeper.spec.spans import gradient_span

#: Settings of a layout, by its name; ranks are processes.
LAYOUTS = {
    "whole": {"micro_batch": 16},
    "parts": {"micro_batch": 2},
    "ranks": {"micro_batch": 4, "devices": 2},
}
Trained = tuple[dict[str, torch.Tensor], list[float]]  # weights at the end; the metric by epoch


def accept(configs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By name: what is guaranteed, and how far layouts and a plain Trainer are from one another."""
    return _in_a_process(_compare, configs)


def accept_layouts(configs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By name and layout, how far it is from one micro-batch; `resumed` from the same layout."""
    return _in_a_process(_compare_layouts, configs)


def _in_a_process(compare: Callable[..., Any], configs: Mapping[str, dict[str, Any]]) -> Any:
    context = multiprocessing.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_accept, args=(send, compare, configs))
    process.start()
    send.close()
    answer = receive.recv()
    process.join()
    return answer


def _accept(pipe: Any, compare: Callable[..., Any], configs: Mapping[str, Any]) -> None:
    pipe.send({name: compare(config) for name, config in configs.items()})


def _compare_layouts(config: dict[str, Any]) -> dict[str, float | None]:
    span = gradient_span(run_spec(config | {"micro_batch": "auto"}).config)
    slices = config["gradient_delay"] if isinstance(config["gradient_delay"], list) else [0]
    layouts = {
        "whole": {"micro_batch": span or config["batch"] // len(slices)},
        "parts": {"micro_batch": span or 24},
        "ranks": {"micro_batch": 24, "devices": 2},
    }
    pairs = {"resumed": ("parts", "parts")}
    shards = {"micro_batch": 24, "devices": 2, "strategy": "fsdp"}
    with suppress(ValueError):  # of what needs whole weights
        run_spec({**config, **shards})
        layouts["shards"] = shards
        pairs |= {"to shards": ("ranks", "shards"), "from shards": ("shards", "parts")}
    with tempfile.TemporaryDirectory() as folder:
        trained = {
            name: _train(config, layout, Path(folder, name)) for name, layout in layouts.items()
        }
        for name, (first, then) in pairs.items():
            _train(config, layouts[first], Path(folder, name), stop_after=1)
            trained[name] = _train(config, layouts[then], Path(folder, name))
    resumed = trained.pop("resumed")
    whole = trained.pop("whole")
    assert whole is not None
    far = {name: _distance(whole, other) for name, other in trained.items()}
    return {**far, "resumed": _distance(trained["parts"], resumed)}


def _compare(config: dict[str, Any]) -> dict[str, Any]:
    facts = json.loads(json.dumps(measured_facts.facts(config)))
    filled = fill_config(config, facts)
    with tempfile.TemporaryDirectory() as folder:
        trained: dict[str, Trained | None] = {
            name: _train(filled, layout, Path(folder, name)) for name, layout in LAYOUTS.items()
        }
        (trained["plain"],) = measured_facts._in_forks(partial(_train_plain, config, Path(folder)))
    whole = trained.pop("whole")
    return {
        "same": next((word for word in filled["guarantees"] if word.startswith(SAME)), ""),
        "missing": missing(filled["guarantees"]),
        "message": facts["found"][SAME]["message"],
        "far": {name: _distance(whole, other) for name, other in trained.items()},
    }


def _train(
    config: dict[str, Any], layout: dict[str, Any], folder: Path, stop_after: int | None = None
) -> Trained | None:
    folder.mkdir(exist_ok=True)
    (folder / "rendezvous").unlink(missing_ok=True)
    ranks = layout.get("devices", 1)
    changed = {**config, **layout}
    return measured_facts._in_forks(
        *(partial(_train_rank, changed, folder, rank, ranks, stop_after) for rank in range(ranks))
    )[0]


def _train_rank(
    config: dict[str, Any], folder: Path, rank: int, ranks: int, stop_after: int | None
) -> Trained | None:
    """None if the run is refused, fails, diverges or is stopped, and on ranks that save nothing."""

    def stop(rows: Any) -> None:
        if any(row["epoch"] == stop_after for row in rows):
            raise InterruptedError

    quieten()
    (own := folder / f"rank-{rank}").mkdir(exist_ok=True)
    checkpoint = folder / "checkpoint.ckpt"
    measured_facts._join_ranks(folder, rank, ranks)
    context = RankContext(rank=rank, folder=own, checkpoint=checkpoint, on_epoch=stop)
    try:
        record = train(run_spec(config), context)
    except Exception as error:  # noqa: BLE001  what a habit raises on a layout is no result
        if not isinstance(error, InterruptedError):
            print(error)  # noqa: T201
        return None
    if rank or record["outcome"] != "finished":
        return None
    weights = torch.load(checkpoint, weights_only=False)["state_dict"]
    curve = record["curve"]
    return weights, [row.get("val_loss") or row["metrics"]["val/loss"] for row in curve]


def _train_plain(config: dict[str, Any], folder: Path) -> Trained | None:
    quieten()
    seed_everything(config["seed"])
    data = instantiate_component(
        {k: v for k, v in config["data"].items() if k != "num_train_examples"}
    )
    seed_everything(config["seed"])
    module = instantiate_component(config["module"])
    seen = []
    module.on_train_epoch_end = lambda own=module.on_train_epoch_end: (
        seen.append(float(trainer.callback_metrics["val/loss"])),
        own(),
    )
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        precision="64-true",
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=list(map(instantiate_component, config["trainer"].get("callbacks", []))),
        logger=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    return (module.state_dict(), seen) if all(map(math.isfinite, seen)) else None


def _distance(one: Trained | None, other: Trained | None) -> float | None:
    """The largest relative difference of any weight or metric; None if only one was trained."""
    if one is None and other is None:
        return 0.0
    if one is None or other is None:
        return None
    far = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one[1], other[1], strict=True)]
    for name, a in one[0].items():
        b = other[0][name]
        if a.is_floating_point():
            far.append(float((a - b).abs().max() / a.abs().max().clamp(min=1e-3)))
    return max(far)
