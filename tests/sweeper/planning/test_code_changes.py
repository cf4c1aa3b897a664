"""Results of a user's project are results of its sources: when these change, the user decides."""

import zipfile
from types import SimpleNamespace

import pytest

from sweeper.commands.tune import _check_code
from sweeper.planning.code_changes import describe_changes
from sweeper.planning.plan import claim_tasks, plan
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store import user_code
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import claim, release


@pytest.fixture
def net(tmp_path, monkeypatch):
    """The source of a user's model."""
    package = tmp_path / "ownnet"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "net.py").write_text("Net = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    user_code._is_own.cache_clear()
    yield package / "net.py"
    user_code._is_own.cache_clear()


@pytest.fixture
def configs(config):
    """Two runs of a user's model in our classifier."""
    return [config(model={"_target_": "ownnet.net.Net"}, seed=seed) for seed in (0, 1)]


def to_do(planned, ledger, **asked):
    """The ids of the runs that a command with these words begins."""
    tasks = claim_tasks(planned, ledger, **{"retry": None, "rerun": None, **asked})
    return [task.spec.run_id for task in tasks]


def make(config, ledger, outcome="finished"):
    attempt = Attempt.begin(run_spec(config), ledger, 1)
    attempt.end(End(outcome=Outcome(outcome), reason=""), ledger)
    return attempt


@pytest.mark.usefixtures("net")
def test_unchanged_sources_stand_without_a_word(configs, ledger):
    make(configs[0], ledger)

    planned = plan(configs, ledger)

    assert planned.changes == {}
    assert to_do(planned, ledger) == [planned.specs[1].run_id]


@pytest.mark.usefixtures("net")
def test_an_attempt_that_has_not_noted_its_sources_yet_has_no_others(configs, ledger):
    """Between the claim and the note another process may plan, as where a job begins."""
    run_id = run_spec(configs[0]).run_id
    assert claim(ledger.attempt_folder(run_id, 1))
    ledger.mark_active(run_id, 1)

    assert plan(configs, ledger).changes == {}


@pytest.mark.usefixtures("net")
def test_the_hash_is_a_column_and_names_the_files(configs, ledger):
    run_id = make(configs[0], ledger).spec.run_id

    (row,) = ledger.rows({run_id}, ["code_hash"]).values()

    kept = user_code.read_code(row["code_hash"], ledger.results)
    assert sorted(kept) == ["ownnet/__init__.py", "ownnet/net.py"]


def test_a_result_of_other_sources_is_refused_before_anything_starts(net, configs, ledger):
    run_id = make(configs[0], ledger).spec.run_id
    net.write_text("Net = 2")
    net.with_name("new.py").write_text("")
    net.with_name("__init__.py").unlink()
    planned = plan(configs, ledger)

    with pytest.raises(ValueError, match="same sources of your project") as refused:
        to_do(planned, ledger)

    assert str(refused.value) == (
        "all runs must be trained with the same sources of your project; got 1 of 2 runs trained "
        f"with other sources, first {run_id}. Changed: ownnet/net.py, ownnet/new.py (new), "
        "ownnet/__init__.py (gone). Give code=keep to let them stand, or code=rerun to train them "
        "again."
    )
    assert [row.run_id for row in ledger.ended().values()] == [run_id]


def test_keep_lets_results_stand_and_rerun_makes_them_again_from_scratch(net, configs, ledger):
    make(configs[0], ledger)
    net.write_text("Net = 2")
    planned = plan(configs, ledger)
    made, new = (spec.run_id for spec in planned.specs)

    assert to_do(planned, ledger, code="keep") == [new]
    tasks = claim_tasks(planned, ledger, retry=None, rerun=None, code="rerun")
    assert [(t.spec.run_id, t.from_scratch) for t in tasks] == [(made, True), (new, False)]
    assert ledger.ended() == {}
    assert to_do(planned, ledger, rerun="all") == [made, new]  # which needs no answer


@pytest.mark.parametrize("outcome", ["preempted", "failed"])
def test_a_checkpoint_of_other_sources_is_refused_too(net, configs, ledger, outcome):
    attempt = make(configs[0], ledger, outcome)
    net.write_text("Net = 2")

    assert plan(configs, ledger).changes == {}  # nothing would be resumed
    attempt.checkpoint.touch()
    planned = plan(configs, ledger)
    assert [*planned.changes] == [attempt.spec.run_id]
    task = claim_tasks(planned, ledger, retry=None, rerun=None, code="rerun")[0]
    assert (task.spec.run_id, task.from_scratch) == (attempt.spec.run_id, True)


def test_a_run_that_is_resumed_with_other_sources_says_so(net, configs, ledger):
    """After code=keep its row has both hashes; after code=rerun, which starts over, one."""
    first = make(configs[0], ledger, "preempted")
    zipfile.ZipFile(first.checkpoint, "w").close()
    net.write_text("Net = 2")

    def row(number, **settings):
        attempt = Attempt.begin(run_spec(configs[0]), ledger, number, **settings)
        return attempt.row(End(outcome=Outcome.PREEMPTED, reason=""), ledger.results)

    resumed, again = row(2), row(3, from_scratch=True)

    digest = user_code.read_hashes(first.folder)[0]
    assert resumed["code_hash"] == again["code_hash"] != digest
    assert (resumed["resumed_code"], again["resumed_code"]) == (digest, None)


def test_a_run_that_is_being_trained_with_other_sources_cannot_be_made_again_now(
    net, configs, ledger
):
    attempt = Attempt.begin(run_spec(configs[0]), ledger, 1)
    net.write_text("Net = 2")
    planned = plan(configs, ledger)

    with pytest.raises(ValueError, match=f"other sources, first {attempt.spec.run_id}"):
        to_do(planned, ledger, code="rerun")
    release(attempt.folder)


def test_without_the_list_of_files_it_says_so(net, configs, ledger):
    make(configs[0], ledger)
    net.write_text("Net = 2")
    for path in (ledger.results / "code").iterdir():
        path.unlink()

    with pytest.raises(ValueError, match="Changed: unknown, as no sources were recorded"):
        to_do(plan(configs, ledger), ledger)


def test_our_own_sources_do_not_count(config, ledger):
    make(config(), ledger)

    assert not (ledger.results / "code").exists()
    assert plan([config()], ledger).changes == {}


def test_the_plan_says_what_would_happen_and_names_a_few_files(net, configs, ledger):
    make(configs[0], ledger)
    for number in range(7):
        net.with_name(f"new{number}.py").write_text("")
    changes = plan(configs, ledger).changes

    assert describe_changes({}, None) is None
    assert "refused until code=keep or code=rerun is given" in describe_changes(changes, None)
    assert describe_changes(changes, "rerun") == (
        "1 run was trained with other sources of your project: code=rerun trains it again. "
        "Changed: ownnet/new0.py (new), ownnet/new1.py (new), ownnet/new2.py (new), "
        "ownnet/new3.py (new), ownnet/new4.py (new) and 2 more."
    )


def test_a_study_whose_trials_other_sources_made_is_refused(net, configs, ledger):
    run_id = make(configs[0], ledger).spec.run_id
    study = SimpleNamespace(name="batch=3840", run_ids=[run_id])
    _check_code([study], ledger, None)
    net.write_text("Net = 2")

    for code in (None, "rerun"):
        with pytest.raises(ValueError, match=f"first {run_id} of batch=3840. .*ownnet/net.py"):
            _check_code([study], ledger, code)
    _check_code([study], ledger, "keep")
