"""McCord & Dash 2021, Increasing mini-batch size while preserving accuracy: figures 4 to 9."""

from analysis.paper.design import Paper, PaperFigure

BATCHES = (3840, 7680, 15360, 23040, 30720)
WARMUPS = (0, 5, 10, 20)

PAPER = Paper(
    name="mccord2021",
    citation="McCord & Dash 2021",
    experiment="mccord2021_warmup",
    reference=(0.753, "75.3 %, He et al. 2015"),
    figures=(
        PaperFigure(
            name="figure_4",
            title="Accuracy per epoch falls as the batch grows",
            batches=BATCHES,
            warmups=(5,),
            along="batch",
        ),
        PaperFigure(
            name="figure_5",
            title="Final accuracy against batch",
            batches=BATCHES,
            warmups=(5,),
            along="batch",
            is_final=True,
        ),
        PaperFigure(
            name="figure_6a",
            title="Warmups at batch 7,680",
            batches=(7680,),
            warmups=WARMUPS,
            along="warmup",
        ),
        PaperFigure(
            name="figure_6b",
            title="Warmups at batch 7,680, the last third",
            batches=(7680,),
            warmups=WARMUPS,
            along="warmup",
            zoom_from=2 / 3,
        ),
        PaperFigure(
            name="figure_6c",
            title="Final accuracy against warmup at batch 7,680",
            batches=(7680,),
            warmups=WARMUPS,
            along="warmup",
            is_final=True,
        ),
        PaperFigure(
            name="figure_7a",
            title="Warmups at batch 30,720",
            batches=(30720,),
            warmups=WARMUPS,
            along="warmup",
        ),
        PaperFigure(
            name="figure_7b",
            title="Final accuracy against warmup at batch 30,720",
            batches=(30720,),
            warmups=WARMUPS,
            along="warmup",
            is_final=True,
        ),
        PaperFigure(
            name="figure_8",
            title="Linear scaling or none at batch 30,720",
            batches=(30720,),
            warmups=(5,),
            rules=("linear", "none"),
            along="rule",
        ),
        PaperFigure(
            name="figure_9",
            title="Linear scaling or none at batch 30,720: loss",
            batches=(30720,),
            warmups=(5,),
            rules=("linear", "none"),
            along="rule",
            measure="val_loss",
        ),
    ),
)
