"""anomalib: STFPM with a teacher of random weights; anomalies are white squares in noise."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import timm
from anomalib.data import Folder
from anomalib.metrics import AUROC, Evaluator
from anomalib.models import Stfpm
from PIL import Image


def draw(kind, number):
    rng, folder = np.random.default_rng(0), Path("pictures", kind)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(number):
        pixels = rng.integers(0, 120, (32, 32, 3), dtype=np.uint8)
        if kind == "bad":
            pixels[8:20, 8:20] = 255
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return folder.absolute()


def data(batch_size=8):
    return Folder(
        "noise",
        normal_dir=draw("good", 60),
        abnormal_dir=draw("bad", 12),
        num_workers=0,
        seed=0,
        train_batch_size=batch_size,
        eval_batch_size=12,
    )


def model():
    create = timm.create_model

    def create_without_download(*args, **settings):
        return create(*args, **{**settings, "pretrained": False})

    with patch.object(timm, "create_model", create_without_download):
        return Stfpm(
            pre_processor=Stfpm.configure_pre_processor((32, 32)),
            evaluator=Evaluator(AUROC(["pred_score", "gt_label"], prefix="image_")),
            visualizer=False,
        )
