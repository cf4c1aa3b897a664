"""Studies in SQLite and in PostgreSQL, a real server: kept, killed, cut off, and gone on with."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import optuna
import pytest
from postgresql import Server

from analysis.tuning.studies import load_tuned
from sweeper.tuning.storage import close_storage, open_storage

WORDS = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=100",
    "batch=256,512", "base_lr=tag(log, interval(0.01, 1))", "n_trials=3",
]  # fmt: skip
LOSS = "hydra.sweeper.objective=val_loss"


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    started = Server()
    started.start()
    yield started
    started.stop()
    started.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tuning.db'}"
    return request.getfixturevalue("server").url


@contextlib.contextmanager
def named(url, name) -> Iterator[list[optuna.Study]]:
    """The studies whose names begin so."""
    storage = open_storage(url, None)
    names = [n for n in optuna.get_all_study_names(storage) if n.startswith(name)]
    yield [optuna.load_study(study_name=n, storage=storage) for n in names]
    close_storage(storage)


@pytest.mark.slow
def test_a_study_in_a_database_is_the_one_in_a_journal(tune, results, studies, url):
    """Also its diverged trial, whose loss is infinite."""
    words = [
        "base_lr=tag(tune, choice(1e25, 0.1))", "hydra/sweeper/sampler=quasi_random", "n_trials=2",
        LOSS, "batch=256",
    ]  # fmt: skip
    in_journal = tune(*words)
    in_database = tune(*words, f"hydra.sweeper.storage={url}", "hydra.sweeper.study_name=kept")
    again = tune(*words, f"hydra.sweeper.storage={url}", "hydra.sweeper.study_name=kept")

    assert (in_journal, in_database, again) == (0, 0, 0)
    (journal,) = studies()
    with named(url, "kept") as (database,):
        attributes, name, kept = database.user_attrs, database.study_name, database.trials
    assert attributes == journal.user_attrs
    for there, here in zip(kept, journal.trials, strict=True):
        assert (there.number, there.state, there.params) == (here.number, here.state, here.params)
        assert there.value == here.value
        assert there.user_attrs == here.user_attrs
    tuned = next(t for t in load_tuned(results, url) if name in t.studies)
    assert list(tuned.trials["outcome"]) == ["finished", "diverged"]


@pytest.mark.slow
def test_a_server_that_is_cut_off_ends_the_command_with_a_sentence(server, tmp_path):
    """And once it is back, the command goes on from there: no number lost, no run made twice."""
    results = tmp_path / "results"
    command = [
        sys.executable, "-m", "sweeper", "-m", "hydra/sweeper=optuna", *WORDS, LOSS,
        f"results={results}", f"hydra.sweeper.storage={server.url}", "hydra.sweeper.study_name=cut",
    ]  # fmt: skip
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 300
    while not list(results.glob("runs/*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.stop()
    said, _ = process.communicate(timeout=900)
    server.start()
    last = subprocess.run(command, text=True, capture_output=True, check=False, timeout=900)

    assert process.returncode == 1, said
    assert "hydra.sweeper.storage can no longer be reached: " in said
    assert "Traceback" not in said
    assert "secret" not in said
    assert last.returncode == 0, last.stdout + last.stderr
    with named(server.url, "cut") as found:
        trials = [[(t.number, t.state.name) for t in study.trials] for study in found]
    assert trials == [[(number, "COMPLETE") for number in range(3)]] * 2


def test_a_connection_that_is_cut_logs_no_traceback(tmp_path, caplog):
    storage = open_storage(f"sqlite:///{tmp_path / 'tuning.db'}", tmp_path)
    connection = storage.engine.raw_connection()
    connection.dbapi_connection.close()  # its pool's rollback fails
    connection.close()
    close_storage(storage)

    assert not caplog.records
