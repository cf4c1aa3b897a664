"""MLPerf's reference convergence points as tables of examples to a target.

`python mlperf/tables.py FOLDER` writes a CSV file per workload, from the package mlperf-logging:
`global_batch`, `seed`, `examples_to_target` or `epochs_to_target`, `peak_lr`, and the warmup.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path

import pandas as pd

#: Workloads by the name of their file, with the unit of what MLPerf calls "epochs to converge".
WORKLOADS = {
    "bert": ("BERT-large", "examples"),
    "deepseekv3_671b": ("DeepSeek-V3 671B", "examples"),
    "dlrm": ("DLRM", "epochs"),
    "dlrm_dcnv2": ("DLRM-DCNv2", "epochs"),
    "dlrmv4": ("DLRMv4", "examples"),
    "flux1": ("FLUX.1", "examples"),
    "gpt3": ("GPT-3 175B", "examples"),
    "gpt_oss_20b": ("gpt-oss 20B", "examples"),
    "llama2_70b_lora": ("Llama 2 70B, LoRA", "examples"),
    "llama31_405b": ("Llama 3.1 405B", "examples"),
    "llama31_8b": ("Llama 3.1 8B", "examples"),
    "maskrcnn": ("Mask R-CNN", "epochs"),
    "qwen35_397b_grpo": ("Qwen3.5 397B, RL", "examples"),
    "resnet": ("ResNet-50", "epochs"),
    "retinanet": ("RetinaNet", "epochs"),
    "rgat": ("R-GAT", "epochs"),
    "rnnt": ("RNN-T", "epochs"),
    "stable_diffusion": ("Stable Diffusion", "examples"),
    "unet3d": ("3D U-Net", "examples"),
}
#: Where the number under this name is the warmup, and in what.
WARMUPS = {
    "opt_learning_rate_warmup_epochs": "warmup_epochs",
    "opt_learning_rate_warmup_samples": "warmup_examples",
    "opt_learning_rate_warmup_steps": "warmup_steps",
    "num_warmup_steps": "warmup_steps",
}
SEQUENCE = 2048  # tokens; gpt3 counts tokens


def newest(name: str) -> tuple[str, dict]:
    """The newest release with points of a workload, and the points."""
    root = Path(str(files("mlperf_logging"))) / "rcp_checker"
    path = max(root.glob(f"training_*/rcps_{name}.json"))
    return path.parent.name.removeprefix("training_")[:3], json.loads(path.read_text())


def table(name: str) -> pd.DataFrame:
    """A row per seed of a workload, in the order of the file, numbered from 1 at each batch."""
    unit = WORKLOADS[name][1]
    rows = []
    for point in newest(name)[1].values():
        settings, batch = point["Hyperparams"], point["BS"]
        values = point.get("Epochs to converge") or point["samples to converge"]
        row = {"global_batch": batch, "peak_lr": settings["opt_base_learning_rate"]}
        if name == "stable_diffusion":  # its reference gives the rate of one example (scale_lr)
            row["peak_lr"] *= batch
        if name == "resnet":  # momentum grows with the batch: the rate that it amounts to
            row["peak_lr"] /= 1 - settings["opt_momentum"]
        for key in settings.keys() & WARMUPS.keys():
            column = WARMUPS[key]
            if name == "unet3d":  # its epochs are examples
                column = "warmup_examples"
            row[column] = settings[key]
        per_unit = SEQUENCE if name == "gpt3" else 1
        for seed, value in enumerate(values, 1):
            rows.append(row | {"seed": seed, f"{unit}_to_target": value / per_unit})
    frame = pd.DataFrame(rows).sort_values(["global_batch", "seed"])
    first = ["global_batch", "seed", f"{unit}_to_target"]
    return frame[[*first, *(column for column in frame if column not in first)]]


def write_tables(folder: Path) -> list[Path]:
    """The tables of all workloads, as `<name>.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.csv" for name in WORKLOADS]
    for path in paths:
        table(path.stem).to_csv(path, index=False, float_format="%.10g")
    return paths


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
