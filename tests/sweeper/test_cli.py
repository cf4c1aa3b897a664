"""One entry: subcommands, help, version, completion; and sentences for what is none of these."""

import importlib.metadata
import os
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweeper import CONFIG_FOLDER
from sweeper.cli import _GROUPS, COMMANDS, main
from sweeper.commands import sweep


def start(*words, python=("-m", "sweeper"), **options):
    """The command in a process of its own: its code and what it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *python, *words]
    return subprocess.run(command, text=True, check=False, timeout=900, **{**pipes, **options})


def complete(line: str) -> list[str]:
    """What the shell is offered for the last word of a line."""
    said = start("-sc", "query=bash", env={**os.environ, "COMP_LINE": line})
    assert said.returncode == 0
    return said.stdout.split()


def test_the_help_names_every_command_and_every_group_with_its_options(command):
    said = command("--help")

    assert said.returncode == 0
    for name, (_, text) in COMMANDS.items():
        assert f"  {name:<12} {text}\n" in said.stdout
    assert "  lr_rule          how the peak rate follows from the batch\n" in said.stdout
    assert "                   adam_sde, adascale, half_life," in said.stdout
    folders = {path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()}
    hydras = {"hydra/launcher", "hydra/sweeper"}
    assert {*_GROUPS} == folders - {"hydra", "experiment", "recipe"} | hydras
    assert max(map(len, said.stdout.splitlines())) <= 100


def test_studies_lists_every_published_study_and_recipe(command):
    listed = {line.split()[0] for line in command("studies").stdout.splitlines() if line[0] == " "}

    assert listed == {
        path.stem
        for group in ("experiment", "recipe")
        for path in (CONFIG_FOLDER / group).iterdir()
    }


def test_the_version_is_that_of_the_package(command):
    assert command("--version").stdout == f"sweeper {importlib.metadata.version('batch-sweeper')}\n"


def test_without_an_installation_it_says_where_it_is():
    root = Path(__file__).parents[2]

    said = start("--version", python=["-S", "-m", "sweeper"], cwd=root)  # -S: without packages

    assert said.stdout == f"sweeper in {root}, not installed\n", said.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_of_its_own(command, name):
    said = command(name, "--help")

    assert said.returncode == 0
    assert said.stdout.startswith("usage: ")


@pytest.mark.parametrize(
    ("typed", "understood"),
    [
        (["batch=1", "--config-dir", "mine", "epochs=2"],
         ["--config-dir", "mine", "batch=1", "epochs=2"]),
        (["-m", "batch=1,2", "-cd=mine", "~tags", "--resolve", "epochs=2"],
         ["-m", "-cd=mine", "--resolve", "batch=1,2", "~tags", "epochs=2"]),
        (["-sc", "install=bash"], ["-sc", "install=bash"]),
        ([], []),
    ],
)  # fmt: skip
def test_flags_may_stand_among_the_overrides(typed, understood, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sweeper", *typed])
    monkeypatch.setattr(sweep, "_run_hydra", lambda: None)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    sweep.run_command_line()

    assert sys.argv[1:] == understood


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_what_the_file_system_refuses_is_a_sentence_whatever_hydra_is_set_to(results, mode):
    (results / "runs").mkdir(parents=True)
    (results / "runs/x.parquet").touch()  # which is damaged
    (results / "damaged").touch()
    path = results / "damaged/runs"

    full = {**os.environ, "HYDRA_FULL_ERROR": "0"}
    done = start(*mode, "batch=3840", f"results={results}", env=full)

    assert done.returncode == 2
    assert done.stdout + done.stderr == (
        f"The command ended early.\n{path} must be readable and writable; got: Not a directory. "
        "Correct it, or name another if it is an argument.\n"
    )


def test_the_help_waits_for_neither_hydra_nor_torch():
    script = (
        "import sys\nfrom sweeper.cli import main\nsys.argv = ['sweeper', '--help']\n"
        "try: main()\nexcept SystemExit: print(sorted({'hydra', 'torch'} & {*sys.modules}))"
    )

    assert start(python=["-c", script]).stdout.endswith("\n[]\n")


@pytest.fixture
def hydra(monkeypatch):
    """A sweep on a terminal, up to where Hydra takes over; there it does what a test says."""

    def start(then, words=("-m", "batch=3840"), modules=None, **environment):
        monkeypatch.setattr(sys, "argv", ["sweeper", *words])
        for name, module in (modules or {}).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(sweep, "run_command_line", then)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return start


def test_a_terminal_shows_what_is_done_before_hydra_is_started(hydra, capsys):
    shown = []

    assert hydra(lambda: shown.append(capsys.readouterr())) is None
    assert (shown[0].out, shown[0].err) == ("", "Composing the configuration ...\n")


@pytest.mark.parametrize("command", ["plan", "equivalence", "analysis"])
def test_a_command_that_takes_seconds_shows_it_before_it_is_imported(hydra, capsys, command):
    shown = []
    fake = SimpleNamespace(main=lambda _: shown.append(capsys.readouterr().err))

    hydra(None, [command], {COMMANDS[command][0]: fake})

    assert shown[0].endswith(" ...\n")


def test_only_the_first_of_torchruns_processes_says_it(hydra, capsys):
    hydra(lambda: None, RANK="1")

    assert capsys.readouterr().err == ""


def test_ctrl_c_before_anything_runs_is_no_traceback(hydra, capsys):
    def pressed():
        raise KeyboardInterrupt

    assert hydra(pressed) == 130
    assert capsys.readouterr().err.endswith("\nStopped.\n")


def test_a_mistyped_command_gets_a_sentence(command):
    refused = command("stats", "results")

    assert refused.returncode == 2
    assert refused.stderr == (
        "A command must be one of run, studies, plan, status, work, stop, logs, doctor, delete, "
        "compact, equivalence, sharpness, analysis; got stats. Did you mean status?\n"
    )


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("sweeper sta", ["status"]),
        ("sweeper lr_r", ["lr_rule.", "lr_rule="]),
        ("sweeper -m batch=3840,7680 lr_rule=sq", ["lr_rule=sqrt"]),
        ("sweeper plan lr_r", ["lr_rule.", "lr_rule="]),
        ("sweeper plan --json seed=0,1 optimizer.mom", ["optimizer.momentum="]),
        ("sweeper status res", []),  # the shell then completes file names
        ("sweeper plan --js", []),
    ],
)
def test_tab_completes_commands_keys_groups_and_options(line, choices):
    assert complete(line) == choices


def test_the_first_word_may_be_a_command_a_key_or_a_group():
    choices = complete("sweeper ")

    assert {*COMMANDS, "batch=", "warmup=", "lr_rule=", "optimizer."} <= {*choices}


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "plan --no-memory batch=3840",
        "plan --json --no-memory batch=3840",
        pytest.param("analysis estimates docs/results/digits", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_leaves_early_ends_a_command_without_a_traceback(command):
    """As in `sweeper plan ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = start(*command.split(), stdout=writer)
    finally:
        os.close(writer)

    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_python_without_assertions_is_refused(tmp_path):
    ended = start("-m", "seed=0,1", f"results={tmp_path}", python=["-O", "-m", "sweeper"])

    said = "Python must keep assertions; got -O or PYTHONOPTIMIZE. Start it without them.\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.parametrize("words", [["sweeper", "--version"], ["analysis", "claims", "nosuch"]])
def test_output_that_cannot_be_written_ends_a_command_with_a_sentence(words):
    """A full disk; /dev/full is one."""
    with Path("/dev/full").open("w") as full:
        ended = start(*words, python=["-m"], stdout=full)

    said = "Standard output must be writable; got: No space left on device. Redirect it elsewhere."
    assert (ended.returncode, ended.stderr) == (2, f"{said}\n")


def test_closed_streams_lead_nowhere_here_and_in_what_is_started():
    """`>&- 2>&- <&-`: a file that is opened next must not get their numbers."""
    child = "import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))"
    script = (
        "import subprocess, sys\n"
        "from sweeper.console.printing import open_closed_streams, say\n"
        "open_closed_streams(); say('to nobody')\n"
        f"sys.exit(subprocess.call([sys.executable, '-c', {child!r}], close_fds=False))"
    )
    command = [shlex.join([sys.executable, "-c", script]) + " <&- >&- 2>&-"]

    assert subprocess.run(command, shell=True, check=False).returncode == 0


@pytest.fixture
def ends_by(monkeypatch):
    """Let a function end in some way; the handler of Ctrl-C is put back."""
    before = signal.getsignal(signal.SIGINT)

    def put(name, end):
        def ended(_):
            raise end

        monkeypatch.setattr(name, ended)

    yield put
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(130)], ids=repr)
def test_ctrl_c_while_a_stopped_command_leaves_prints_no_traceback(end, ends_by):
    ends_by("sweeper.cli._run", end)

    with pytest.raises(SystemExit, match="130"):
        main()
    signal.raise_signal(signal.SIGINT)  # ignored


def test_ctrl_c_in_an_analysis_is_no_traceback(ends_by, capsys):
    ends_by("analysis.cli.main", KeyboardInterrupt())

    with pytest.raises(SystemExit, match="130"):
        runpy.run_module("analysis.__main__", run_name="__main__")

    assert capsys.readouterr().err == "Stopped.\n"


def test_a_folder_that_was_removed_gets_a_sentence(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    said = "The current folder must exist; it was removed. Change to another folder.\n"
    assert capsys.readouterr().err == said
