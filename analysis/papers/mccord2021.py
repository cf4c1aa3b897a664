"""McCord & Dash 2021, Increasing mini-batch size while preserving accuracy: figures 4 to 9."""

from functools import partial

from analysis.papers.design import Paper, PaperFigure
from analysis.papers.goyal2017 import PUBLISHED

BATCHES = (3840, 7680, 15360, 23040, 30720)
WARMUPS = (0, 5, 10, 20)

_batches = partial(PaperFigure, batches=BATCHES, warmups=(5,), along="batch")
_at_7680 = partial(PaperFigure, batches=(7680,), warmups=WARMUPS, along="warmup")
_at_30720 = partial(PaperFigure, batches=(30720,), warmups=WARMUPS, along="warmup")
_rules = partial(
    PaperFigure, batches=(30720,), warmups=(5,), rules=("linear", "none"), along="rule"
)

PAPER = Paper(
    name="mccord2021",
    citation="McCord & Dash 2021",
    experiment="mccord2021_warmup",
    lines=((0.753, "75.3 %, He et al. 2015"), (0.7626, "76.26 %, Goyal et al. 2017 at 8,192")),
    published=PUBLISHED,
    published_remark=", with Nesterov's momentum, weight decay 1e-4 and BatchNorm over 32.",
    protocol={"rate_per_example": 0.1 / 256},
    figures=(
        _batches(name="figure_4", title="Accuracy per epoch at each batch"),
        _batches(name="figure_5", title="Final accuracy against batch", is_final=True),
        _at_7680(name="figure_6a", title="Warmups at batch 7,680"),
        _at_7680(name="figure_6b", title="Warmups at batch 7,680, the last third", zoom_from=2 / 3),
        _at_7680(
            name="figure_6c", title="Final accuracy against warmup at batch 7,680", is_final=True
        ),
        _at_30720(name="figure_7a", title="Warmups at batch 30,720"),
        _at_30720(
            name="figure_7b", title="Final accuracy against warmup at batch 30,720", is_final=True
        ),
        _rules(name="figure_8", title="Linear scaling or none at batch 30,720"),
        _rules(
            name="figure_9",
            title="Linear scaling or none at batch 30,720: loss",
            measure="val_loss",
        ),
    ),
)
