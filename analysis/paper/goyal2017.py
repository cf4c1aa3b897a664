"""Goyal et al. 2017, Accurate, large minibatch SGD (arXiv:1706.02677): table 1, figures 1 and 3."""

from analysis.paper.design import Paper, PaperFigure

BATCHES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

PAPER = Paper(
    name="goyal2017",
    citation="Goyal et al. 2017",
    experiment="goyal2017",
    reference=(0.764, "76.4 %, batch 256 there"),
    figures=(
        PaperFigure(
            name="figure_1",
            title="Final accuracy against batch",
            batches=BATCHES,
            warmups=(5,),
            along="batch",
            is_final=True,
        ),
        PaperFigure(
            name="figure_1_curves",
            title="Accuracy per epoch at each batch",
            batches=BATCHES,
            warmups=(5,),
            along="batch",
        ),
        PaperFigure(
            name="figure_3",
            title="No warmup or gradual warmup at batch 8,192",
            batches=(8192,),
            warmups=(0, 5),
            along="warmup",
        ),
    ),
)
