"""Every subcommand with malformed words: a sentence and exit code 2; nothing is left or started."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_results

from sweeper.cli import COMMANDS

_WARM_CLI = Path(__file__).parents[1] / "warm_cli.py"
_LONG = "x" * 5000
_RESULTS = "../results"

#: Words that no command which takes overrides can follow.
BAD_WORDS = [
    "batch", "batch==256", "=", "~", "+=1", "batch=,", "batch=,256", "batch=256=512",
    "batch=[256,512]", "batch=256;512", "batch='", "batch={a}", "batch=${", "batch=${nosuch}",
    "batch=${oc.env:NOSUCH}", "batch=???", "batch=a:b", "batch=range(3,1)", "batch=range(a)",
    "batch=range(1e300,2e300)", "seed=range(0,1000000)", "batch=glob(*)", "batch=interval(1,2)",
    "batch=tag(1)", "batch=abc", "batch=0", "batch=nan", "batch=null", f"batch={10**400}",
    "batch=7", "batc=1", "learning_rate=0.1", "optimizer.lr=0.1", "optimizer.momentm=0.9",
    "batch.x=1", "+batch.x=1", "++new=1", "+batch=256", "seed.=1", "seed..x=1", "seed=日本",
    "seed=\udcff", "a b=1", "seed=a\nb", "~nosuch", "~batch", "~data", "~model", "~lr_rule.name",
    "~data._target_", "~precision", "~hydra", "~trainer", "data=null", "data=[digits,noise]",
    "data@x=digits", "data=../config", "data=1", "lr_rule=sqr", "+lr_rule=sqrt", "lr_rule.name=[]",
    "+lr_rule._target_=1", "+lr_rule._target_=os.system", "+lr_rule._target_=sys.exit",
    "model._target_=1", "data._target_=1", "module._target_=1", "optimizer._target_=1",
    "optimizer._target_=torch.optim.Nosuch", "hydra/sweeper=nosuch", "hydra.mode=nosuch",
    "hydra.searchpath=1", "hydra.job.nosuch=1", "experiment=goyal2017", "+experiment=nosuch",
    "+experiment=", "results=", "results=' '", "results=1", "results=[1]", "results=ra,rb",
    "results=/dev/null/x", "retry=x", "rerun=yes", "threads=0", "threads=100000", "num_nodes=2.5",
    "gradient_clip=inf", "warmup=100", "epochs=1e10", "keep_checkpoint=abc", "metric_mode=x",
    "precision=16", "micro_batch=7", "schedule.factor=-1", f"data.num_train_examples={2**63}",
    "+model.name=1", "trainer=[]", "trainer={nosuch: 2}",
]  # fmt: skip

BAD_FLAGS = [
    ["--nosuch"], ["--batch=256"], ["-x"], ["--cfg"], ["--cfg", "nosuch"], ["--config-dir"],
    ["--config-dir", "nosuch", "batch=3840"], ["--config-dir", "/dev/null", "batch=3840"],
    ["--config-name", "nosuch"], ["--info", "nosuch"], ["-sc", "install=nosuch"], ["-sc"],
    ["--run", "--multirun"], ["-m", "--info", "--cfg", "job"], ["batch", "=", "256"],
    ["-m", "hydra.launcher.jobs=0"], ["-m", "hydra.launcher.jobs=abc"],
    ["-m", "hydra.launcher.jobs=-3"], ["-m", "hydra.launcher.jobs=1.5"],
    ["-m", "hydra.launcher.jobs=1,2"], ["-m", "hydra.launcher.nosuch=1"],
    ["-m", "hydra/sweeper=basic"], ["-m", "hydra/launcher=basic"],
    ["-m", "hydra/launcher=submitit_local"],
    ["hydra.run.dir=/dev/null/x"], ["hydra.job.chdir=true", "hydra.run.dir=/dev/null/x"],
    ["-m", "hydra/sweeper=optuna"], ["-m", "hydra/sweeper=optuna", "base_lr=interval(1,0)"],
    ["-m", "hydra/sweeper=optuna", "base_lr=interval(a,b)"],
    ["-m", "hydra/sweeper=optuna", "base_lr=interval(0.1,1)", "n_trials=0"],
    ["-m", "hydra/sweeper=optuna", "base_lr=interval(0.1,1)", "n_trials=abc"],
    ["-m", "hydra/sweeper=optuna", "base_lr=interval(0.1,1)", "hydra.sweeper.nosuch=1"],
    ["-m", "hydra/sweeper=optuna", "base_lr=interval(0.1,1)", "hydra.sweeper.max_concurrent=x"],
    ["-m", "hydra/sweeper=optuna", "base_lr=interval(0.1,1)",
     "hydra.sweeper.sampler._target_=os.system"],
    ["-m", "hydra/sweeper=optuna", "batch=tag(tune,range(1e300,2e300))"],
]  # fmt: skip

BAD_COMMANDS = [
    ["nosuch"], ["Plan"], ["statu"],
    ["plan", "--nosuch"], ["plan", "--config-dir"], ["plan", "--config-dir", "nosuch"],
    ["plan", "--config-dir", "/dev/null"], ["plan", "--config-dir", _LONG],
    ["plan", "--schedule-plot"], ["plan", "--schedule-plot", "/dev/null/x.png"],
    ["plan", "--schedule-plot", "nosuch/x.png"], ["plan", "--schedule-plot", "x.nosuch"],
    ["plan", "--json=1"],
    ["status", "nosuch"], ["status", ""], ["status", _LONG], ["status", "a/b"], ["status", "*"],
    ["status", "/dev/null"], ["status", "nosuch", "--results", "/dev/null"], ["status", "a", "b"],
    ["status", "--results"], ["status", "--nosuch"], ["status", "\udcff"],
    ["status", "nosuch", "--results", _LONG], ["status", "abc", "--json"],
    ["compact", "nosuch"], ["compact", "."], ["compact", "/dev/null"], ["compact", _LONG],
    ["compact", "a", "b"], ["compact", "--nosuch"], ["compact", ""], ["compact", "\udcff"],
    ["doctor", "--devices", "x"], ["doctor", "--devices", "0"], ["doctor", "--devices", "-1"],
    ["doctor", "--nosuch"], ["doctor", "a", "b"], ["doctor", "batch=abc"], ["doctor", "nosuch=1"],
    ["doctor", "module=nosuch"], ["doctor", "--config-dir", "nosuch", "batch=256"],
    ["doctor", "module._target_=1", "data._target_=1"],
    *(["equivalence", "--layouts", layouts, "batch=3840"]
      for layouts in ("", "x", "0x1", "2", "1x1", "1x1,1x1", "1x-1", "axb", ",", "9x9x9", "1.5x1")),
    *(["equivalence", "batch=4096", "--precision", precision]
      for precision in ("", "abc", "16", "64-true,", "64-true,abc")),
    ["equivalence", "--nosuch"], ["equivalence", "seed=0,1"], ["equivalence", "batch=7"],
    ["equivalence", "--layouts"], ["equivalence", "--config-dir", "nosuch"],
    ["analysis"], ["analysis", "nosuch"], ["analysis", "--nosuch"],
    *(["analysis", command, "nosuch"] for command in
      ("figures", "table", "claims", "estimates", "report", "tuning")),
    *(["analysis", command, "."] for command in ("figures", "claims", "estimates", "tuning")),
    *(["analysis", command, _LONG] for command in ("figures", "report", "tuning")),
    *(["analysis", command, "/dev/null"] for command in ("figures", "report", "tuning")),
    ["analysis", "paper"], ["analysis", "paper", "nosuch"], ["analysis", "claims", "--paper", "x"],
    ["analysis", "figures", "--metric"], ["analysis", "figures", "--metric-mode", "x"],
    ["analysis", "tuning", "a", "b"], ["analysis", "tuning", "nosuch"],
]  # fmt: skip

#: With results that can be analysed: what is wrong is where the output should go.
BAD_OUTPUTS = [
    ["figures", "--out", "/dev/null/x"], ["figures", "--metric", "nosuch"],
    ["figures", "--out", _LONG], ["paper", "mccord2021", _RESULTS, "--out", "/dev/null/x"],
    ["table", "--out", "/dev/null/x"], ["table", "--metric", "nosuch"],
    ["claims", "--out", "/dev/null/x"], ["claims", "--out", "."], ["claims", "--out", "nosuch/x"],
    ["report", "--out", "/dev/null/x"], ["report", "--out", "."], ["report", "--out", "nosuch/x"],
    ["report", "--out", _LONG], ["report", "--metric", "nosuch"],
    ["estimates", "--target", "abc"], ["estimates", "--target", "nan"],
    ["estimates", "--target", "90"], ["figures", "--target", "90"],
    ["estimates", "--metric", "nosuch"],
]  # fmt: skip


def answers(lines: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    """Code, output and what was left behind of each command line, in a folder of its own."""
    cases = [{"argv": line, "folder": str(folder / str(n))} for n, line in enumerate(lines)]
    for case in cases:
        Path(case["folder"]).mkdir()
    asked, answered = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(cases))
    command = [sys.executable, str(_WARM_CLI), str(asked), str(answered)]
    subprocess.run(command, check=True, timeout=3600)
    found = json.loads(answered.read_text())
    return [
        {**answer, "left": sorted(path.name for path in Path(case["folder"]).iterdir())}
        for case, answer in zip(cases, found, strict=True)
    ]


def check(lines: list[list[str]], answered: list[dict[str, Any]]) -> None:
    found: list[str] = []
    for line, answer in zip(lines, answered, strict=True):
        said = answer["out"] + answer["err"]
        wrong = [
            name
            for name, is_wrong in {
                "traceback": "Traceback" in said,
                f"code {answer['code']}": answer["code"] != 2,
                f"left {answer['left']}": answer["left"],
                "silent": not said.strip(),
                "unprintable": re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said.replace("\t", " ")),
                "long": len(said) > 6000,
                "no value": not names_a_word(line, said),
            }.items()
            if is_wrong
        ]
        if wrong:
            case = " ".join(word[:60] for word in line)
            found.append(f"{case!r} {wrong}: {said[-600:]}")
    assert not found, "\n".join(found)


def needs_a_process(line: list[str]) -> bool:
    """Whether Hydra composes a configuration, or only a real standard error can take a word."""
    is_composed = line[0] in {"plan", "equivalence"} or any("=" in word for word in line)
    return is_composed or any("\udcff" in word for word in line)


def names_a_word(line: list[str], said: str) -> bool:
    """Whether a refusal names some part of what was typed; usage texts do."""
    parts = [part for word in line for part in re.split(r"^--|[.=(),\[\]{}@~+' ]", word)]
    words = [
        part[:20] for part in parts if part.isprintable() and part not in {"", "-m", *COMMANDS}
    ]
    is_named = any(word in said for word in words) or not words
    return is_named or "usage: " in said or " ." in said  # the folder itself


#: What is asked of processes; each word of plan or of a sweep, which read them alike.
LINES = {
    "overrides of plan": [["plan", word] for word in BAD_WORDS[0::2]],
    "overrides of a sweep": [["-m", word] for word in BAD_WORDS[1::2]],
    "flags": BAD_FLAGS,
    "commands": [line for line in BAD_COMMANDS if needs_a_process(line)],
    "outputs": [
        ["analysis", *line, *[_RESULTS] * (_RESULTS not in line)] for line in BAD_OUTPUTS
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def answered(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """The answers to all of them, from one process that has imported everything once."""
    folder, rng = tmp_path_factory.mktemp("lines"), np.random.default_rng(0)
    runs = simulated_runs([3840, 30720], [0, 5], 2, accuracy=lambda b, w: 0.8, noise=0.01, rng=rng)
    write_results(folder / "results", runs, simulated_curves(runs, 3))
    found = iter(answers([line for lines in LINES.values() for line in lines], folder))
    return {kind: [next(found) for _ in lines] for kind, lines in LINES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_lines_that_cannot_be_followed(kind, answered):
    check(LINES[kind], answered[kind])


def test_commands_that_cannot_be_followed(command, tmp_path, monkeypatch):
    """In this process, as these compose nothing and end where they begin."""
    monkeypatch.chdir(tmp_path)
    lines = [line for line in BAD_COMMANDS if not needs_a_process(line)]
    said = [command(*line) for line in lines]
    answered = [{"code": one.returncode, "out": one.stdout, "err": one.stderr} for one in said]

    check(lines, [{**one, "left": sorted(tmp_path.iterdir())} for one in answered])
