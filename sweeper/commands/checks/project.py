"""A user's module and data: what a run can promise of them, and why not the rest."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.commands.checks.check import Check, Severity, broken, good, warning
from sweeper.commands.user_facts import (
    add_facts,
    check_config,
    choose_bn_span,
    count_examples,
    fill_config,
    find_facts,
    has_own_code,
)
from sweeper.launch.ask_process import ask_process
from sweeper.launch.fork_server import ForkServerDied, open_fork_server
from sweeper.planning.plan import plan
from sweeper.spec.guarantee_names import FIXED_BATCHNORM
from sweeper.spec.sentences import several
from sweeper.spec.values import LARGEST
from sweeper.spec.worker_args import METRIC_NOT_LOGGED
from sweeper.store.ledger import Ledger

_REFUSED = "A sweep would be refused with the same sentence."


def project_checks(config: Mapping[str, Any], *, has_batch: bool = True) -> Iterator[Check]:
    """Examine the module and the data of a config, without relying on stored facts.

    Without a batch of the user's choice, one that few data have is taken, and named.
    ValueError if a value is wrong, or the module is our own, for which all guarantees hold.
    """
    (config,) = count_examples([config])
    check_config(config)
    target = config["module"]["_target_"]
    ledger = Ledger.from_setting(config["results"])
    if not has_own_code(config["module"], config.get("model")):
        plan(add_facts([config], ledger.results), ledger)  # what else is wrong comes first
        msg = (
            f"doctor must be given a module or a model of your own; got module._target_={target} "
            "with a model of ours, for which all guarantees hold. Write module._target_=package."
            "Class or model._target_=package.Class, or leave out the overrides to check this "
            "machine."
        )
        raise ValueError(msg)
    try:
        (facts,) = find_facts([dict(config)], ledger.results)
    except ValueError as error:
        yield broken("module and data", str(error), _REFUSED)
        return
    found = f"{facts['num_train_examples']:,} training examples"
    if facts.get("is_iterable"):
        most = facts.get("most_ranks", 1)
        found += ", iterable only: trained in their own order"
        found += f", on at most {several(most, 'rank')}" * (most < LARGEST)
        yield warning("data", found, "Give the data set a length and indices.")
    else:
        yield good("data", found)
    if not has_batch and (few := facts["num_train_examples"]) < config["batch"]:
        config["batch"] = 1 << few.bit_length() - 1
        yield good("batch", f"{config['batch']} is checked, as the default is more than the data")
    try:
        plan([fill_config(dict(config), facts)], ledger)
    except ValueError as error:
        yield broken("config", str(error), _REFUSED)
    else:
        yield _first_steps_check(config, facts)
    for name, finding in facts["found"].items():
        severity = Severity.GOOD if finding["holds"] else Severity.WARNING
        yield Check(severity, name, finding["message"], finding["do"])
    bn_span = choose_bn_span(config["bn_span"], facts)
    yield _batchnorm_check(bn_span, has_batchnorm=facts["has_batchnorm"])
    if not facts["is_automatic"]:
        yield good("optimization", "manual: micro_batch x ranks must equal batch")


def _first_steps_check(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Check:
    """Whether a few steps and an evaluation raise anything, and whether the metric is logged."""
    try:
        why = find_error(fill_config(dict(config), facts))
    except ValueError as error:
        why = str(error)
    if METRIC_NOT_LOGGED in why:
        is_given = config["metric_mode"] is not None
        remedy = "A sweep needs its name: metric=NAME metric_mode=max, or min."
        return (broken if is_given else warning)("metric", why.removeprefix("ValueError: "), remedy)
    if refused := re.match(r"(?:ValueError|\S+BatchContractBroken): (?!.*, line \d+$)", why):
        return broken("first steps", f"sweeper cannot train it, because {why[refused.end() :]}", "")
    if why:
        return broken("first steps", why, "A run on this machine's CPU may fail in the same way.")
    return good("first steps", "a few steps and an evaluation after them raise nothing")


def find_error(config: Mapping[str, Any]) -> str:
    """Why the first steps of a run, or the evaluation after them, fail; empty if they do not.

    Args:
        config: resolved, with what is known about the user's module and data.
    """
    try:
        open_fork_server()
        found = ask_process("first steps", [config])
    except ForkServerDied as error:
        return str(error)
    return found.values[0] if found.values else f"the process ended: {found.last_line}"


def _batchnorm_check(bn_span: int | str | None, *, has_batchnorm: bool) -> Check:
    if not has_batchnorm:
        return good(FIXED_BATCHNORM, "the model has no BatchNorm")
    if isinstance(bn_span, int):
        return good(FIXED_BATCHNORM, f"it normalises {bn_span} examples on every layout")
    found = f"bn_span={bn_span} normalises micro-batches, so results depend on micro_batch"
    return warning(FIXED_BATCHNORM, found, "Set bn_span to a number of examples.")
