"""What is swept is what tells runs apart."""

from io import StringIO

import pytest
from rich.console import Console

from sweeper.commands.show_plan import plan_grid, plan_lines, show
from sweeper.console.differences import Differences
from sweeper.console.live import LiveTable
from sweeper.console.printing import text_console
from sweeper.planning.plan import Event
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger


@pytest.fixture
def differing(grid):
    """The keys in which the runs of a grid differ, and the label of each run."""

    def of(*words):
        runs = [run_spec(config).words for config in grid(*words)]
        found = Differences(runs)
        return found.keys, [found.label(run) for run in runs]

    return of


@pytest.mark.parametrize(
    ("word", "keys", "labels"),
    [
        ("batch=3840,7680", ["batch"], ["batch=3840", "batch=7680"]),
        ("base_lr=0.1,1e-5", ["base_lr"], ["base_lr=0.1", "base_lr=1e-05"]),
        ("lr_rule=none,sqrt", ["lr_rule"], ["lr_rule=none", "lr_rule=sqrt"]),
        ("gradient_clip=null,1", ["gradient_clip"], ["gradient_clip=null", "gradient_clip=1"]),
        (
            "model.channels=[8,8],[16,32]",
            ["model.channels"],
            ["model.channels=[8,8]", "model.channels=[16,32]"],
        ),
        ("+model.name=a,b", ["model"], ["model=a", "model=b"]),
        ("perturbation=none,sam", ["perturbation"], ["perturbation=none", "perturbation=sam"]),
    ],
)
def test_any_key_that_is_swept_tells_runs_apart(differing, word, keys, labels):
    found, named = differing(word)

    assert found == keys
    assert named == labels


def test_settings_of_a_choice_are_said_only_where_the_same_choice_has_several(differing):
    """The weight decay of sgd and of lamb differ by default; that goes without saying."""
    words = ("optimizer=sgd,lamb", "optimizer.weight_decay=0.1,0.2", "batch=3840")
    assert differing("optimizer=sgd,lamb")[0] == ["optimizer"]

    keys, labels = differing(*words)

    assert keys == ["optimizer", "optimizer.weight_decay"]
    assert labels[1] == "optimizer=sgd optimizer.weight_decay=0.2"


def test_a_span_that_follows_from_the_micro_batch_is_said(differing):
    assert differing("bn_span=micro", "micro_batch=128,256")[0] == ["bn_span"]


def test_settings_of_a_class_of_the_users_own_tell_runs_apart(config):
    def own(**module):
        settings = config(
            module={"_target_": "mine.Net", **module},
            data={"_target_": "mine.Data", "num_train_examples": 61440},
            optimizer={"_target_": "module.configure_optimizers", "name": "module"},
            schedule={"name": "constant"},
            base_lr=None,
            bn_span=None,
            model=None,
        )
        return run_spec(settings).words

    runs = [own(width=8, encoder={"_target_": f"mine.{name}", "depth": 2}) for name in "AB"]
    found = Differences([*runs, own(width=16, encoder={"_target_": "mine.A", "depth": 3})])

    assert found.keys == ["module.width", "module.encoder", "module.encoder.depth"]
    assert found.label(runs[1]) == "module.width=8 module.encoder=B module.encoder.depth=2"
    assert "module=Net data=Data optimizer=module epochs=30" in found.common()


def test_a_key_that_only_some_runs_have_tells_them_apart(config):
    plain = run_spec(config(lr_rule={"name": "linear"}))
    scaled = run_spec(config(lr_rule={"name": "linear", "warmup_exponent": 0.5}))

    found = Differences([plain.words, scaled.words])

    assert found.keys == ["lr_rule.warmup_exponent"]
    assert found.label(scaled.words) == "lr_rule.warmup_exponent=0.5"


def test_what_does_not_differ_is_said_once_of_all_and_methods_that_are_on(grid):
    words = ["perturbation=sam", "ema_decay=0.99", "gradient_clip=1", "warmup=0", "lr_rule=none"]
    runs = [run_spec(config).words for config in grid("batch=3840,7680", *words)]

    assert Differences(runs).common() == (
        "warmup=0 lr_rule=none seed=0 model=SmallCNN data=Digits optimizer=sgd base_lr=0.025 "
        "schedule=periodic_decay epochs=30 perturbation=sam perturbation.rho=0.05 ema_decay=0.99 "
        "gradient_clip=1"
    )


def test_what_a_terminal_would_obey_is_not_printed(config):
    names = ["a\x1b[2Jb", "c"]
    runs = [run_spec(config(model={"_target_": "x.y", "name": name})).words for name in names]

    assert Differences(runs).label(runs[0]) == "model=a?[2Jb"


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_plan_shows_every_number_at_any_width(results, width):
    words = ["accelerator=cpu", "epochs=1", "warmup=0", "schedule=constant", f"results={results}"]
    plan, _ = plan_grid(
        [*words, "batch=3840,30720", "optimizer=sgd,nesterov", "base_lr=0.025,0.1", "seed=0,1"],
        config_dir=None,
    )
    console = StringIO()

    show(plan, plan_lines(plan, {}), Console(width=width, file=console, highlight=False))

    lines = console.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("30,720" in line.split() for line in lines) == 8
    assert sum("nesterov" in line.split() for line in lines) == 8
    assert sum("0.025" in line.split()[:4] for line in lines) == 8


def test_lines_in_a_file_name_what_differs_and_the_metric(results, grid, capsys):
    specs = [run_spec(config) for config in grid("warmup=0", "optimizer=sgd,nesterov")]
    ledger = Ledger(results)
    ledger.prepare()
    table = LiveTable(specs, ledger, text_console(), keys=[])
    attempt = Attempt.begin(specs[0], ledger, 1)
    assert attempt is not None
    row = '{"epoch": 1, "step": 16, "val_accuracy": 0.5, "elapsed_s": 2.0}\n'
    (attempt.folder / "progress.jsonl").write_text(row)

    table.update(Event(began=[attempt]))
    table.update(
        Event(ended={specs[0].run_id: End(outcome=Outcome.FINISHED, reason="trained 1 epoch")})
    )

    assert capsys.readouterr().out.splitlines() == [
        "start    optimizer=sgd",
        "finished optimizer=sgd  val_accuracy=0.5000  trained 1 epoch",
    ]


def test_what_is_tuned_is_shown_from_the_first_trial(results, grid, capsys):
    (config,) = grid("base_lr=0.0123456789")
    table = LiveTable([], Ledger(results), text_console(), keys=["base_lr"])

    table.add(run_spec(config), "waiting")
    table.print_summary()

    _, common, head, cells, _ = capsys.readouterr().out.splitlines()
    assert "base_lr" not in common
    assert head.split() == ["base_lr", "state"]
    assert cells.split() == ["0.0123457", "not", "started"]
