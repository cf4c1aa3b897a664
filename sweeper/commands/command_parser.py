"""The parser of a subcommand that takes overrides; explains unknown options in a sentence."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from sweeper.commands.refusals import check_dashes, refuse

#: Flags that show what Hydra composes, with the words to write after them.
_OF_HYDRA = {
    **dict.fromkeys(("--cfg", "-c"), " job"),
    **dict.fromkeys(("--info", "-i", "--hydra-help"), ""),
    "--resolve": " --cfg job",
    **dict.fromkeys(("--shell-completion", "-sc"), " install=bash"),
}


class CommandParser(argparse.ArgumentParser):
    """Refuses config keys given as flags, and Hydra's flags, and names the right command."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line; exit with 2."""
        words = message.partition("unrecognized arguments: ")[2].split()
        try:
            _check_hydras(words, self.prog.partition(" ")[2])
            check_dashes(words)
        except ValueError as error:
            sys.exit(refuse(error))
        super().error(message)


def _check_hydras(words: Sequence[str], command: str) -> None:
    """ValueError for a flag that shows what Hydra composes."""
    for flag in (word.partition("=")[0] for word in words):
        if flag in _OF_HYDRA:
            msg = (
                f"{flag} must be given to sweeper itself; got sweeper {command} {flag}. Write "
                f"sweeper {flag}{_OF_HYDRA[flag]}, then your overrides."
            )
            raise ValueError(msg)
