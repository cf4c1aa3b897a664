"""Command lines through the real entry, each in a fork of one process that has imported it all.

`python warm_cli.py CASES ANSWERS`: both are JSON lists; a case has argv and a folder to be in.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

_AT_MOST_S = 60
#: What commands import when they need it.
_IMPORTED = (
    "analysis.figures.draw",
    "analysis.papers.judge",
    "analysis.report.estimates",
    "analysis.tuning.figures",
    "lightning_modules.data.image_files",
    "matplotlib.figure",
    "sweeper.commands.sweep",
    "sweeper.commands.tune",
    "sweeper.launch.torchrun.launcher",
)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    _warm()
    Path(sys.argv[2]).write_text(json.dumps([_answer(case) for case in cases]))


def _warm() -> None:
    import hydra.core.plugins

    import sweeper.commands.show_plan
    import sweeper.launch.local.launcher
    from sweeper.cli import COMMANDS

    hydra.core.plugins.Plugins.instance()
    for module in (*_IMPORTED, *(module for module, _ in COMMANDS.values())):
        importlib.import_module(module)
    sweeper.launch.local.launcher.run_here = _no_run
    with contextlib.redirect_stdout(io.StringIO()):  # the grammar's tables fill as it is used
        words = ["batch=3840,7680", "warmup=0", "results=nowhere"]
        sweeper.commands.show_plan.main([*words, "--no-memory"])
    gc.freeze()


def _no_run(*_: Any) -> NoReturn:
    sys.exit("a run was started")


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if (pid := os.fork()) == 0:
            _be(case, out.fileno(), err.fileno())
        _, status, used = os.wait4(pid, 0)
        streams = {}
        for name, file in {"out": out, "err": err}.items():
            file.seek(0)
            streams[name] = file.read().decode(errors="backslashreplace")
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "cpu_s": used.ru_utime + used.ru_stime, **streams}


def _be(case: dict[str, Any], out: int, err: int) -> NoReturn:
    """As an interpreter of its own would be."""
    signal.alarm(_AT_MOST_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(case["folder"])
    words = (word.encode("utf-8", "surrogateescape") for word in case["argv"])
    sys.argv = ["sweeper", *map(os.fsdecode, words)]
    code = 0
    try:
        from sweeper.cli import main

        main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int | None) else 1
        if not isinstance(left.code, int | None):
            sys.stderr.write(f"{left.code}\n")
    except BaseException:  # noqa: BLE001  what an interpreter would print
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main()
