"""The sources of the user's package stand for the code behind a run."""

import pytest

from sweeper.store import own_code
from sweeper.store.own_code import code_hash


@pytest.fixture
def project(tmp_path, monkeypatch):
    package = tmp_path / "brandnew"
    (package / "nets").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "nets" / "net.py").write_text("WIDTH = 1\n")
    (tmp_path / "loose.py").write_text("def callback(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own_code._hashes.cache_clear()
    yield package
    own_code._hashes.cache_clear()


CONFIG = {
    "module": {"_target_": "brandnew.nets.net.Net", "optimizer": {"_target_": "torch.optim.SGD"}},
    "data": {"_target_": "lightning_modules.data.digits.Digits"},
    "trainer": {"callbacks": [{"_target_": "loose.callback"}]},
}


def code():
    own_code._hashes.cache_clear()
    return own_code.own_code(CONFIG)


@pytest.mark.usefixtures("project")
def test_packages_count_whole_and_are_not_imported():
    assert sorted(code()) == ["brandnew/__init__.py", "brandnew/nets/net.py", "loose.py"]


def test_installed_packages_and_ours_do_not_count():
    named = {"model": {"_target_": "torchvision.models.resnet18"}, "data": CONFIG["data"]}

    assert own_code.own_code({**named, "more": {"_target_": "json.loads"}}) == {}
    assert code_hash({}) is None


def test_any_change_of_a_source_changes_the_hash(project, tmp_path):
    hashes = [code_hash(code())]
    (project / "nets" / "net.py").write_text("WIDTH = 2\n")
    hashes.append(code_hash(code()))
    (project / "more.py").write_text("")
    hashes.append(code_hash(code()))
    (tmp_path / "loose.py").unlink()
    hashes.append(code_hash(code()))

    assert len(set(hashes)) == 4
