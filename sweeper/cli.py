"""The command `sweeper`: its subcommands and its help; anything else is a sweep."""

import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sweeper import CONFIG_FOLDER, import_own
from sweeper.console.printing import describe_os_error, note, open_closed_streams, say
from sweeper.console.results_folder import spell_folder
from sweeper.spec.outcomes import BAD_INPUT, DONE, INTERRUPTED

#: Subcommands: the module with its `main`, and what it does.
COMMANDS = {
    "plan": (
        "sweeper.commands.show_plan",
        "list every run of a grid with its numbers; start nothing",
    ),
    "status": (
        "sweeper.commands.status",
        "show results, what is running, waiting or failed, and why; --watch",
    ),
    "work": (
        "sweeper.commands.work",
        "train runs that hydra/launcher=queue has queued, on any machine",
    ),
    "stop": ("sweeper.commands.stop", "end workers and SLURM jobs of a folder, or a run, saved"),
    "logs": ("sweeper.commands.logs", "print what a run has printed; -f follows it"),
    "doctor": ("sweeper.commands.doctor", "find what would go wrong on this machine"),
    "delete": ("sweeper.commands.delete", "forget runs, so that their sweep trains them again"),
    "compact": ("sweeper.commands.compact", "merge many small parquet files into one"),
    "equivalence": ("sweeper.commands.compare_layouts", "compare the weights of several layouts"),
    "sharpness": ("sweeper.commands.sharpness", "measure the loss's curvature at kept checkpoints"),
    "analysis": ("analysis.cli", "draw figures, test claims, estimate, report"),
}

#: Commands of this file, and what they do.
_BUILT_IN = {
    "run": "train every point of a grid; repeat the command to resume",
    "studies": "list published studies and recipes",
}

_HELP = """\
usage: sweeper run [override ...]   train every point of a grid, as does `sweeper -m`
       sweeper override ...         train one run
       sweeper COMMAND [-h] ...     a results folder is results=F, --results F or F everywhere

commands:
{commands}

overrides, in Hydra's syntax:
  batch=3840,30720     values of a config key; also 'warmup=range(0,21,5)', quoted for the shell
  lr_rule=none         an option of a config group; +group=option for the groups marked with +

config groups, and their options:
{groups}

  +experiment, +recipe
                   published studies and recipes: `sweeper studies` lists them

flags:
  --cfg job            print the whole config, with every key and its value
  --config-dir DIR     a folder with your own config groups
  -sc install=bash     tab completion: eval "$(sweeper -sc install=bash)"; zsh and fish too
  --hydra-help         print Hydra's flags
  --version            print the version"""
#: Config groups: what each chooses.
_GROUPS = {
    "data": "what is trained on",
    "model": "the network of our classifier",
    "module": "what Lightning trains: our classifier, or a class of yours",
    "optimizer": "how weights are updated",
    "lr_rule": "how the peak rate follows from the batch",
    "schedule": "how the rate, or the batch, goes over the training",
    "perturbation": "gradients at other weights",
    "comm_hook": "how ranks exchange gradients",
    "logger": "where metrics are logged besides the tables",
    "cluster": "the machine whose time and cost plans count",
    "hydra/launcher": "where runs are trained",
    "hydra/sweeper": "which points are trained: a grid, tuned rates, seeds until a question ends",
}
_COMPOSING = "Composing the configuration ..."
_MEANWHILE = {"plan": _COMPOSING, "equivalence": _COMPOSING, "analysis": "Reading the results ..."}


def main() -> NoReturn:
    """Run the command line; exit with its code."""
    open_closed_streams()
    _take_unread()
    try:
        if unusable := _gone() or _hidden():
            sys.stderr.write(f"{unusable}\n")
            sys.exit(BAD_INPUT)
        sys.exit(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        _have_stopped()
        note("Stopped.")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _have_stopped()
        raise
    finally:
        for path in _take_unread():
            note(f"{path} is damaged, or of another program: it was left out.")


def _take_unread() -> Sequence[Path]:
    """The files of results folders that could not be read since it was last asked."""
    reader = sys.modules.get("sweeper.store.publish")  # not imported for a help text
    return reader.take_unread() if reader else ()


def _have_stopped() -> None:
    """Ignore further Ctrl-C: nothing is left to stop, and the exit would end in a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _gone() -> str | None:
    """An error if the working folder was removed; otherwise put it on the import path."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return "The current folder must exist; it was removed. Change to another folder."
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as `python -m sweeper` does
    return None


def _hidden() -> str | None:
    """An error if Python finds another package under a name of ours, or leaves out assertions."""
    if not __debug__:  # in which Hydra's parser takes steps
        return "Python must keep assertions; got -O or PYTHONOPTIMIZE. Start it without them."
    for name in ("hydra_plugins", "lightning_modules"):
        spec = importlib.util.find_spec(name)
        found = (spec and spec.submodule_search_locations) or ()
        if Path(__file__).parents[1] / name not in [Path(folder).resolve() for folder in found]:
            return (
                f"The import {name} must find sweeper's own package; got "
                f"{spec and spec.origin}, which Python finds first. Rename it, or "
                "start the command from another folder (PYTHONPATH counts too)."
            )
    return None


def _run(arguments: Sequence[str]) -> int | None:
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        return _command(first, arguments[1:])
    if first == "studies":
        say(_list_studies())
        return DONE
    if first == "run":
        sys.argv[1:] = ["-m", *spell_folder("run", arguments[1:])]
        return _hydra()
    if first.isidentifier():
        sys.stderr.write(f"{_unknown(*arguments[:2])}\n")
        return BAD_INPUT
    is_bare = not arguments and "COMP_LINE" not in os.environ
    if is_bare or {"-h", "--help", "--version"} & {*arguments}:
        say(_version() if "--version" in arguments else _help())
        return DONE
    if any(word.startswith("--results") for word in arguments):
        sys.argv[1:] = spell_folder("sweep", arguments)
    return _hydra()


def _command(name: str, arguments: Sequence[str]) -> int:
    if name in _MEANWHILE and not {"-h", "--help"} & {*arguments}:
        _say_meanwhile(_MEANWHILE[name])
    try:
        if name == "analysis":
            import_own(name)
        return importlib.import_module(COMMANDS[name][0]).main(spell_folder(name, arguments))
    except OSError as error:
        refusal = describe_os_error(error)
    except ValueError as error:
        refusal = str(error)
    sys.stderr.write(f"{refusal}\n")
    return BAD_INPUT


def _hydra() -> None:
    """A sweep, or tab completion; Hydra is imported here so that the help need not wait for it."""
    if "COMP_LINE" not in os.environ and os.environ.get("RANK", "0") == "0":  # of torchrun's ranks
        _say_meanwhile(_COMPOSING)
    from sweeper.commands import sweep

    if "COMP_LINE" in os.environ:
        sweep.complete_line(os.environ["COMP_LINE"], [*_BUILT_IN, *COMMANDS])
    else:
        sweep.run_command_line()


def _say_meanwhile(text: str) -> None:
    """Show on a terminal that work has started, before imports that may take seconds."""
    if sys.stderr.isatty():
        note(text)


def _version() -> str:
    try:
        return f"sweeper {importlib.metadata.version('batch-sweeper')}"
    except importlib.metadata.PackageNotFoundError:
        return f"sweeper in {Path(__file__).parents[1]}, not installed"


def _unknown(word: str, then: str = "") -> str:
    if then.startswith("="):
        return f"An override must be one word; got {word} {then}. Put no spaces around the =."
    from sweeper.spec.sentences import did_you_mean  # pydantic, which the help does not wait for

    hint = did_you_mean(word, [*_BUILT_IN, *COMMANDS]) or "See sweeper --help."
    return f"A command must be one of {', '.join([*_BUILT_IN, *COMMANDS])}; got {word}. {hint}"


def _help() -> str:
    about = _BUILT_IN | {name: text for name, (_, text) in COMMANDS.items()}
    commands = [f"  {name:<12} {text}" for name, text in about.items()]
    return _HELP.format(commands="\n".join(commands), groups="\n".join(map(_options, _GROUPS)))


def _options(group: str) -> str:
    """One config group, what it chooses, and its options, wrapped."""
    names = ", ".join(sorted(path.stem for path in (CONFIG_FOLDER / group).glob("*.yaml")))
    title, indent = f"  {'+' * (group == 'cluster')}{group}", " " * 19
    filled = textwrap.fill(names, width=100, initial_indent=indent, subsequent_indent=indent)
    return f"{title:<17}  {_GROUPS[group]}\n{filled}"


def _list_studies() -> str:
    """Published studies and recipes, with the beginning of what their files say of them."""
    lines: list[str] = []
    for group, title in (("experiment", "Studies"), ("recipe", "Recipes")):
        lines.append(f"{title}: sweeper run +{group}=NAME; `sweeper plan` shows the runs.")
        for path in sorted((CONFIG_FOLDER / group).glob("*.yaml")):
            text = path.read_text().partition("\n")[2].partition("\n\n")[0]
            about = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
            lines.append(f"  {path.stem:<31}{textwrap.shorten(about, 67, placeholder=' ...')}")
    return "\n".join(lines)
