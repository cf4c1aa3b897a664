"""A sequential sweep: its questions, its rounds, where it ends, and that it goes on as it was."""

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from sweeper.commands.overrides import expand
from sweeper.commands.sequential import run_sequential
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.planning.plan import Event
from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger
from sweeper.store.questions import read_questions

WARMUPS = ["warmup=0,1,2", "epochs=4", "seed=range(0,8)", "question='best warmup'"]


@pytest.fixture
def ask(loader, sweeper_settings, results):
    """Answer the question of some words with a launcher."""

    def run(launch, *words):
        of_sweeper = [w for w in words if w.startswith("hydra")]
        options = sweeper_settings("hydra/sweeper=sequential", *of_sweeper)
        words = [w for w in words if not w.startswith("hydra")]
        return run_sequential(expand(loader, [*words, f"results={results}"]), options, launch)

    return run


class Pretended:
    """A place to run that publishes a value for each run, as many at once as there are tasks.

    Like SLURM's it takes all tasks up to the first None; the values are a function of the spec.
    """

    def __init__(self, value, stop_after=None):
        self.value, self.stop_after = value, stop_after
        self.rounds = []

    @property
    def made(self):
        return sum(len(one) for one in self.rounds)

    def __call__(self, tasks, ledger):
        source = iter(tasks)
        while True:
            ready = []
            for task in source:
                if task is None:
                    break
                ready.append(task)
            else:
                if not ready:
                    return
            self.rounds.append([self._point(task) for task in ready])
            for task in ready:
                yield self._made(task, ledger)
                if self.made_so_far(ledger) == self.stop_after:
                    raise KeyboardInterrupt

    def made_so_far(self, ledger):
        return sum(row.outcome.is_result for row in ledger.ended().values())

    @staticmethod
    def _point(task):
        return task.spec.words["warmup"][0], task.spec.config.seed

    def _made(self, task, ledger):
        attempt = Attempt.begin(task.spec, ledger, task.number)
        value = self.value(task.spec)
        outcome = value if isinstance(value, Outcome) else Outcome.FINISHED
        measured = {} if isinstance(value, Outcome) else {"val_accuracy": value}
        end = End(outcome=outcome, reason="")
        ledger.publish({**attempt.row(end, ledger.results), "steps": 5, **measured}, [])
        attempt.settle(end, ledger)
        return Event(began=[attempt], ended={task.spec.run_id: end})


def accuracy(means, noise=0.002):
    """Values by warmup, with noise of each run."""

    def value(spec):
        seed, warmup = spec.config.seed, int(spec.config.warmup)
        return means[warmup] + noise * np.random.default_rng([seed, warmup]).normal()

    return value


FAR = accuracy({0: 0.90, 1: 0.92, 2: 0.95})
CLOSE = accuracy({0: 0.90, 1: 0.949, 2: 0.95}, noise=0.001)


def remembered(results):
    (path,) = (results / "questions").iterdir()
    return json.loads(path.read_text())


def test_seeds_are_added_to_all_arms_until_one_is_best(ask, results, capsys):
    launch = Pretended(FAR)

    assert ask(launch, *WARMUPS) == 0

    assert [len(one) for one in launch.rounds] == [9, 2]  # warmup=0 was out by then
    said = capsys.readouterr().out
    answer = re.search(r"warmup=2 is best of 3: better than warmup=1, the nearest, by .*", said)
    assert answer is not None
    assert remembered(results)["answer"] == answer[0]
    assert re.search(rf"Decided after \d seeds. \d looks, {launch.made} runs used, \d+ of 24", said)
    rows = Ledger(results).rows(Ledger(results).ended(), ["config_json"]).values()
    assert {json.loads(row["config_json"])["question"] for row in rows} == {None}


def test_what_is_out_gets_no_more_seeds(ask):
    launch = Pretended(CLOSE)

    ask(launch, *WARMUPS, "hydra.sweeper.give_up=0")

    assert {warmup for warmup, _ in launch.rounds[-1]} == {"1", "2"}


def test_a_question_that_the_ledger_answers_starts_nothing(ask, capsys):
    ask(Pretended(FAR), *WARMUPS)
    before = capsys.readouterr().out
    again = Pretended(FAR)

    assert ask(again, *WARMUPS) == 0

    last = [line for line in before.splitlines() if "warmup=2 is best" in line][-1]
    assert again.rounds == []
    assert last in capsys.readouterr().out


@pytest.mark.parametrize("stop_after", [2, 10])
def test_a_study_that_was_stopped_goes_on_to_the_same_looks_and_answer(
    ask, results, stop_after, tmp_path
):
    assert ask(Pretended(CLOSE, stop_after), *WARMUPS) == 130
    rest = Pretended(CLOSE)

    assert ask(rest, *WARMUPS) == 0

    stopped = remembered(results)
    results.rename(tmp_path / "stopped")
    whole = Pretended(CLOSE)
    ask(whole, *WARMUPS)
    assert remembered(results) == stopped
    assert stop_after + rest.made == whole.made


def test_a_run_without_a_result_is_said_and_tried_again_on_request(ask, capsys):
    def failing(spec):
        is_it = spec.config.seed == 1 and spec.config.warmup == 2
        return Outcome.FAILED if is_it else FAR(spec)

    first, second, third = Pretended(failing), Pretended(FAR), Pretended(FAR)

    assert ask(first, *WARMUPS) == 1
    assert "The look after 3 seeds waits for 1 run, first " in capsys.readouterr().out
    assert ask(second, *WARMUPS, "retry=failed") == 0
    assert ask(third, *WARMUPS) == 0
    assert second.rounds[0] == [("2", 1)]
    assert third.rounds == []


@pytest.mark.parametrize(
    "words",
    [
        ["question='best warmup'", "warmup=0,1,2"],
        ["question='best  warmup at epochs 4'", "warmup=0,1,2"],
        ["question='best warmup within 0.3 points'", "warmup=0,1,2"],
        ["question='best warmup'", "warmup=1,2"],
        ["question='no worse than warmup 1 within 1 points'", "warmup=1,2"],
    ],
)
def test_other_seeds_for_runs_of_a_question_are_refused_in_whatever_words(ask, words):
    ask(Pretended(CLOSE), *WARMUPS)

    with pytest.raises(ValueError, match="was started with seed=0,1,2,3,4,5,6,7 and looks"):
        ask(Pretended(CLOSE), *words, "epochs=4", "seed=range(0,9)")


def test_each_answer_says_which_question_it_is_and_how_many_of_its_runs_were_there(
    ask, results, capsys
):
    first, new = WARMUPS[-1], "seed=range(10,14)"
    within = "question='best warmup within 0.3 points'"
    places = []
    for question, *words in ([first], [within], [first, new], [first]):
        assert ask(Pretended(FAR), *WARMUPS[:-1], *words, question) == 0
        places += re.findall("^Question \\d .*", capsys.readouterr().out, re.MULTILINE)

    assert places == [
        "Question 1 of this folder; 0 of its 24 runs had a result before it was asked.",
        "Question 2 of this folder, which err in up to 10 % together; 11 of its 24 runs had a "
        "result before it was asked: if these suggested it, no error rate holds.",
        "Question 3 of this folder, which err in up to 15 % together; 0 of its 12 runs had a "
        "result before it was asked.",
        places[0],
    ]
    assert {asked.said.partition(" Question ")[2][:1] for asked in read_questions(results)} == {
        "1", "2", "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["question='which is best'"], "question must have one of the known forms; got"),
        (["question='best warmpu'"], "got warmpu. Did you mean warmup?"),
        (["question='best warmup at warmup 1'"], "two or more values of warmup to compare"),
        (["question='best warmup within 0.3'"], "in points: within 0.3 points; got question="),
        (["question='best warmup at batch 1'"], "got batch=1, the grid has batch=3840."),
        (["question='best warmup at batch'"], "a value for each key after 'at'; got 'batch'"),
        (["question='no worse than warmup 7 within 1 points'"], "needs warmup=7 and another"),
        (["question='best warmup'", "lr_rule=linear,none"], "lr_rule differs too: linear, none."),
        (["question='best warmup'", "seed=0,1"], "seed must have 3 or more values"),
        (["question=null"], "question must be given with hydra/sweeper=sequential"),
        (["question='best warmup'", "hydra.sweeper.first_look=2"], "first_look must be a whole"),
        (["question='best warmup'", "hydra.sweeper.give_up=1"], "give_up must be a number from 0"),
    ],
    ids=str,
)  # fmt: skip
def test_a_question_that_cannot_be_asked_is_refused_before_anything_starts(
    ask, results, words, sentence
):
    launch = Pretended(FAR)
    base = [w for w in WARMUPS if w.partition("=")[0] not in {x.partition("=")[0] for x in words}]

    with pytest.raises(ValueError, match=re.escape(sentence)):
        ask(launch, *base, *words)

    assert launch.rounds == []
    assert not results.exists()


@pytest.mark.parametrize(
    "question", ["question='best warmup'", "question='no worse than warmup 0 within 0.3 points'"]
)
def test_arms_that_are_the_same_at_every_seed_end_with_a_reason(ask, capsys, question):
    launch = Pretended(lambda spec: 1.0)

    assert ask(launch, *WARMUPS[:-1], question) == 0

    said = capsys.readouterr().out
    assert launch.made == 9
    assert "by 0 points (the same at every seed: no interval; 3 seeds)" in said
    assert "Stopped: differences that are the same at every seed cannot be tested" in said
    assert "probability below" not in said
    assert "inf" not in said


@pytest.mark.parametrize("value", [Outcome.DIVERGED, np.nan, np.inf, -np.inf])
def test_an_arm_that_diverged_or_has_no_number_is_named_and_not_waited_for(ask, capsys, value):
    lost = Pretended(lambda s: value if (s.config.warmup, s.config.seed) == (0, 1) else FAR(s))

    assert ask(lost, *WARMUPS) == 0

    said = capsys.readouterr().out
    assert re.search("warmup=2 is best of 3: .*; runs diverged, the worst result: warmup=0", said)


def test_arms_that_are_one_training_are_refused(ask):
    words = ["batch=3840", "base_batch=3840", "lr_rule=linear,none", "seed=0,1,2"]

    with pytest.raises(ValueError, match="lr_rule=linear and lr_rule=none have the same learning"):
        ask(Pretended(FAR), *words, "question='best lr_rule'")


def test_each_batch_is_judged_against_the_base_batch(ask, capsys):
    values = {1920: 0.95, 3840: 0.95, 7680: 0.90}

    def value(spec):
        seed = np.random.default_rng([spec.config.seed, spec.config.batch])
        return values[spec.config.batch] + 0.0005 * seed.normal()

    words = ["batch=1920,3840,7680", "base_batch=1920", "seed=range(0,8)", "base_lr=0.01"]

    assert (
        ask(Pretended(value), *words, "question='no worse than base_batch within 0.5 points'") == 0
    )

    said = capsys.readouterr().out
    assert "batch=3840: no worse (better by " in said
    assert re.search(r"batch=7680: worse, by 0.5 points or more \(worse by [45]", said)


def test_a_budget_needs_the_time_of_its_runs(ask):
    with pytest.raises(ValueError, match="it is not known for 9 of 9 runs"):
        ask(Pretended(FAR), *WARMUPS, "budget=1")


@pytest.mark.slow
def test_a_command_that_is_killed_and_repeated_answers_as_one_that_is_not(ask, results, tmp_path):
    """SIGKILL while real runs train: the same looks, intervals and answer, no run made twice."""
    words = [
        "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=1",
        "model.noise_scale=256", "batch=256", "base_lr=0.03,0.1,0.3", "seed=range(0,8)",
        "question='best base_lr'",
    ]  # fmt: skip
    sweeper = [sys.executable, "-m", "sweeper", "-m", "hydra/sweeper=sequential"]
    command = subprocess.Popen([*sweeper, *words, f"results={results}"], stdout=subprocess.DEVNULL)
    while len(list(results.glob("runs/*-finished.parquet"))) < 4 and command.poll() is None:
        time.sleep(0.1)
    command.kill()
    assert command.wait() < 0
    machine = Machine(cores=2, jobs=2)

    assert ask(lambda tasks, ledger: run_here(tasks, ledger, machine), *words) == 0

    killed = remembered(results)
    assert len(list(results.glob("runs/*-finished.parquet"))) == len(killed["runs"])
    results.rename(tmp_path / "killed")
    ask(lambda tasks, ledger: run_here(tasks, ledger, machine), *words)
    assert remembered(results) == killed
    assert killed["why"].startswith("Decided after ")
