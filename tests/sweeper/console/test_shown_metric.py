"""The metric of a run, as the table of a sweep, the plan and `status` show it."""

import json
import math
import re
from io import StringIO

import pytest
from rich.console import Console

from sweeper.commands.show_plan import plan_grid, plan_lines, show
from sweeper.commands.status import main, watch
from sweeper.console.live import live_table
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger
from sweeper.store.pending_runs import list_pending
from sweeper.store.run_columns import metric_columns


def ended(results, config, logged, **measured):
    """A finished run of one epoch, whose module logged something."""
    ledger, spec = Ledger(results), run_spec(config)
    ledger.prepare()
    attempt = Attempt.begin(spec, ledger, 1)
    assert attempt is not None
    row = {"epoch": 1, "step": 16, "elapsed_s": 2.0, "lr": None, "metrics": logged, **measured}
    (attempt.folder / "progress.jsonl").write_text(json.dumps(row) + "\n")
    attempt.end(End(outcome=Outcome.FINISHED, reason="trained 1 epoch"), ledger)
    return spec, ledger


@pytest.fixture
def error(config):
    """A run that is compared by its error."""
    return config(batch=3840, warmup=0, metric="val/rmse", metric_mode="min")


def summary(spec, ledger, capsys) -> str:
    with live_table([spec], ledger):
        pass
    return capsys.readouterr().out


def test_a_run_that_had_ended_is_shown_with_the_metric_that_is_asked_for(results, error, capsys):
    spec, ledger = ended(results, error, {"val/rmse": 1.25, "val/r2": 0.75})
    other = run_spec({**error, "metric": "val/r2", "metric_mode": "max"})

    assert re.search(r"val/rmse(.*\n)+.*1\.2500", summary(spec, ledger, capsys))
    assert "0.7500" in summary(other, ledger, capsys)


def test_a_run_without_an_accuracy_has_an_empty_cell(results, config, capsys):
    spec, ledger = ended(results, config(batch=3840, warmup=0), {}, val_accuracy=math.nan)

    assert "nan" not in summary(spec, ledger, capsys)


@pytest.mark.parametrize(
    ("values", "columns", "is_shown"),
    [([0.5, math.nan], (math.nan, 0.5), True), ([math.nan], (math.nan, math.nan), True),
     ([], (None, None), False)],
)  # fmt: skip
def test_a_metric_that_is_no_number_is_told_from_one_that_is_absent(
    results, error, capsys, values, columns, is_shown
):
    curve = [{"epoch": i, "metrics": {"val/rmse": value}} for i, value in enumerate(values, 1)]
    spec, ledger = ended(results, error, {"val/rmse": values[-1]} if values else {})

    found = metric_columns(curve, spec.config)

    assert repr((found["metric"], found["best_metric"])) == repr(columns)
    assert (" nan\n" in summary(spec, ledger, capsys)) == is_shown


def test_status_of_a_run_names_what_was_logged_and_no_accuracy_that_there_is_not(
    results, error, capsys
):
    spec, _ = ended(results, error, {"val/rmse": 1.25}, val_accuracy=math.nan, train_loss=math.nan)

    main([spec.run_id, "--results", str(results)])

    *_, last = capsys.readouterr().out.rstrip().splitlines()
    assert last.strip() == "epoch=1 step=16 train_loss=nan elapsed_s=2 val/rmse=1.25"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["metric=train_loss", "metric_mode=min"], "compared by train_loss (lower is better)"),
        ([], ""),
    ],
)
def test_the_plan_says_what_runs_are_compared_by(results, words, sentence):
    plan, _ = plan_grid(["accelerator=cpu", *words, f"results={results}"], config_dir=None)
    lines = plan_lines(plan, {})
    console = Console(width=200, file=StringIO())

    show(plan, lines, console)

    assert lines[0]["metric_name"] == (words[0].partition("=")[2] if words else "val_accuracy")
    said = console.file.getvalue()
    assert sentence in said
    assert ("compared by" in said) == bool(sentence)


@pytest.mark.parametrize("width", ["60", "80", "140"])
def test_status_shows_the_results_of_the_runs_and_what_tells_them_apart(
    results, config, capsys, monkeypatch, width
):
    monkeypatch.setenv("COLUMNS", width)
    for seed, accuracy in ((0, 0.93125), (1, 0.75)):
        ended(results, config(batch=30720, seed=seed), {}, val_accuracy=accuracy)

    main(["--results", str(results)])

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= int(width)
    assert "All runs: batch=30720" in " ".join(lines)
    first, second = (line.split() for line in lines if "finished" in line.split())
    assert first[:2] + second[:2] == ["0", "finished", "1", "finished"]
    assert ("0.9313" in first, "0.7500" in second) == (True, True)


def test_plan_and_status_say_the_tokens_of_a_text(results, grid, capsys):
    """128 in a sequence: 8 of them in a step, 512 in the run."""
    words = ("model=gpt", "batch=8", "data.num_train_examples=1024", "tokens=65536")
    planned, _ = plan_grid([*words, f"results={results}"], config_dir=None)
    console = Console(width=200, file=StringIO())
    show(planned, plan_lines(planned, {}), console)
    ended(results, grid(*words)[0], {"val_loss": 2.0})

    assert main(["--results", str(results)]) == 0
    for text in (console.file.getvalue(), capsys.readouterr().out):
        assert re.search(r"tokens/step +tokens ", text)
        assert re.search(r" 1,024 +65,536 ", text)


def test_status_is_watched_until_no_run_is_running_or_waiting(results, config, monkeypatch):
    specs = [run_spec(config(batch=3840, warmup=warmup)) for warmup in (0, 1)]
    ledger = Ledger(results)
    ledger.prepare()
    pages: list[str] = []
    screen = StringIO()
    console = Console(width=120, height=30, file=screen, force_terminal=True, color_system=None)

    def next_page(_: float) -> None:
        """Between two looks a run ends, whatever the clock says."""
        pages.append(screen.getvalue())
        config = specs[len(pages) - 1].config.resolved
        ended(results, config, {}, val_accuracy=0.9)

    monkeypatch.setattr("sweeper.commands.status.time.sleep", next_page)

    with list_pending([(spec, 1) for spec in specs], results):
        watch(ledger, "", console)

    assert "no run has finished yet, 0 running, 2 waiting." in pages[0]
    assert "1 finished, 0 running, 1 waiting." in pages[1]
    assert screen.getvalue().rstrip().endswith(f"2 finished, 0 running. Results: {results}")
    assert screen.getvalue().count("0.9000") == 1 + 2


def test_a_watched_table_fits_its_terminal_and_says_what_is_left_out(results, config):
    for seed in range(8):
        ended(results, config(batch=3840, warmup=0, seed=seed), {}, val_accuracy=0.9)
    screen = StringIO()
    console = Console(width=120, height=13, file=screen, force_terminal=True, color_system=None)

    watch(Ledger(results), "", console)

    assert screen.getvalue().count("0.9000") == 3
    assert "... and 5 runs more" in screen.getvalue()


def test_only_a_terminal_is_watched(results, config):
    ended(results, config(batch=3840, warmup=0), {}, val_accuracy=0.9)

    with pytest.raises(ValueError, match="--watch must have a terminal; got"):
        main(["--results", str(results), "--watch"])
