"""Tables in, numbers and figures out. Never imports torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.figures.curves import curve_points, draw_per_epoch
    from analysis.figures.final import draw_against_batch, draw_against_warmup, draw_heat_map
    from analysis.figures.points import points, split_by_rule
    from analysis.figures.responses import draw_best_rates, draw_best_warmups
    from analysis.figures.sheet import Drawing, save
    from analysis.figures.target import best_reached, draw_steps_to_target
    from analysis.report.any_runs import judge_table
    from analysis.report.table import PaperTable, paper_table
    from analysis.stats.breaking_batch import breaking_batch
    from analysis.stats.contrasts import seeds_to_see
    from analysis.stats.critical_batch import critical_batch, doubling_batch
    from analysis.stats.laws import compare_rules, constant_rate, diffusion
    from analysis.stats.optimum import best_lrs, best_warmups, exponent
    from analysis.stats.pairs import compare
    from analysis.stats.replicates import Estimate
    from analysis.stats.to_target import to_target
    from analysis.tables.comparable_runs import AXES, ComparableRuns, group_comparable
    from analysis.tables.load import UnreadFile, columns, load_curves, load_runs
    from analysis.tables.metric import ACCURACY, LOSS, Metric, with_metric

__all__ = [
    "ACCURACY", "AXES", "LOSS", "ComparableRuns", "Drawing", "Estimate", "Metric", "PaperTable",
    "UnreadFile", "best_lrs", "best_reached", "best_warmups", "breaking_batch", "columns",
    "compare", "compare_rules", "constant_rate", "critical_batch", "curve_points", "diffusion",
    "doubling_batch", "draw_against_batch", "draw_against_warmup", "draw_best_rates",
    "draw_best_warmups", "draw_heat_map", "draw_per_epoch", "draw_steps_to_target", "exponent",
    "group_comparable", "judge_table", "load_curves", "load_runs", "paper_table", "points", "save",
    "seeds_to_see", "split_by_rule", "to_target", "with_metric",
]  # fmt: skip

#: What is imported when it is asked for, since pandas, scipy and matplotlib take seconds.
_LAZY = {
    "analysis.figures.curves": "curve_points draw_per_epoch",
    "analysis.figures.final": "draw_against_batch draw_against_warmup draw_heat_map",
    "analysis.figures.responses": "draw_best_rates draw_best_warmups",
    "analysis.figures.points": "split_by_rule points",
    "analysis.figures.sheet": "Drawing save",
    "analysis.figures.target": "best_reached draw_steps_to_target",
    "analysis.report.any_runs": "judge_table",
    "analysis.report.table": "PaperTable paper_table",
    "analysis.stats.breaking_batch": "breaking_batch",
    "analysis.stats.critical_batch": "critical_batch doubling_batch",
    "analysis.stats.to_target": "to_target",
    "analysis.stats.contrasts": "seeds_to_see",
    "analysis.stats.laws": "compare_rules constant_rate diffusion",
    "analysis.stats.optimum": "best_lrs best_warmups exponent",
    "analysis.stats.pairs": "compare",
    "analysis.stats.replicates": "Estimate",
    "analysis.tables.comparable_runs": "AXES ComparableRuns group_comparable",
    "analysis.tables.load": "UnreadFile columns load_curves load_runs",
    "analysis.tables.metric": "ACCURACY LOSS Metric with_metric",
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names.split():
            return getattr(import_module(module), name)
    msg = f"module 'analysis' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
