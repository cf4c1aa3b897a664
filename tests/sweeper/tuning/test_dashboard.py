"""optuna-dashboard, a program of its own, reads the journal of a study."""

import json
from wsgiref.util import setup_testing_defaults

import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from sweeper.tuning.point_study import PointStudy
from sweeper.tuning.storage import JOURNAL, open_storage
from sweeper.tuning.study_settings import StudySettings, parse_objective


def test_the_dashboard_reads_the_trials_of_a_journal(results):
    """Of a study of three trials: one finished, one diverged, one running."""
    dashboard = pytest.importorskip("optuna_dashboard")
    settings = StudySettings(
        space={"base_lr": FloatDistribution(1e-3, 1, log=True)},
        objective=parse_objective("val_loss"), sampler_seed=0,
        sampler={"_target_": "optuna.samplers.RandomSampler"},
        pruner={"_target_": "optuna.pruners.NopPruner"},
    )  # fmt: skip
    study = PointStudy("batch=256 made-up", ["batch=256"], settings, open_storage(results))
    for outcome in ("finished", "diverged"):
        row = {"outcome": outcome, "reason": "became non-finite", "peak_memory_gib": 1.0}
        study.tell(study.ask(), {**row, "val_loss": 0.125})
    study.ask()
    app = dashboard.wsgi(JournalStorage(JournalFileBackend(str(results / JOURNAL))))

    def get(path):
        environ = {"PATH_INFO": path}
        setup_testing_defaults(environ)
        return json.loads(b"".join(app(environ, lambda *_: None)))

    (listed,) = get("/api/studies")["study_summaries"]
    assert listed["study_name"] == "batch=256 made-up"
    trials = get(f"/api/studies/{listed['study_id']}")["trials"]
    assert [trial["state"] for trial in trials] == ["Complete", "Complete", "Running"]
    assert [trial["values"] for trial in trials[:2]] == [[0.125], ["inf"]]
    assert "became non-finite" in json.dumps(trials[1]["user_attrs"])
