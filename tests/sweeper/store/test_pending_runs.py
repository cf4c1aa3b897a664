"""The list of the runs that a sweep has still to start."""

from dataclasses import replace

import pytest

from sweeper.spec.run_spec import run_spec
from sweeper.store import pending_runs as module
from sweeper.store.lease import this_process


@pytest.mark.parametrize("host", ["we/ird\nx", "../../x", "knoten-ü.local"])
def test_a_machine_may_have_any_name(config, results, monkeypatch, host):
    me = replace(this_process(), host=host)
    monkeypatch.setattr(module, "this_process", lambda: me)
    results.mkdir()

    with module.list_pending([(run_spec(config()), 1)], results):
        (path,) = results.iterdir()
        (listed,) = module.read_pending_runs(results)

    assert path.parent == results
    assert listed.holder == me
    assert list(results.iterdir()) == []
