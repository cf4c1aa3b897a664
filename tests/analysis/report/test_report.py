"""The report page in a real Chromium: opened, hovered, filtered, and safe against its data."""

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_results

from analysis.cli import main
from analysis.report.data import report_data
from analysis.report.page import as_json, page
from analysis.report.watch import Watcher, make_server

EVIL = '</script><script>document.title="owned"</script><img src=x onerror=document.title="owned">'


def some_runs():
    return simulated_runs(
        [256, 1024, 4096],
        [0, 5],
        2,
        accuracy=lambda b, w: 0.8 - b / 100_000 + w / 100,
        noise=0.01,
        rng=np.random.default_rng(0),
    )


def write_some(folder: Path) -> Path:
    """Twelve runs, the first of which diverged and left a log."""
    runs = some_runs()
    runs.loc[0, ["outcome", "val_accuracy"]] = ["diverged", np.nan]
    runs["log_path"] = [f"attempts/log-{i}.txt" for i in range(len(runs))]
    write_results(folder, runs, simulated_curves(runs, 4))
    (folder / "attempts").mkdir()
    (folder / "attempts" / "log-0.txt").write_text("step 7\nloss nan at step 8\n")
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_some(tmp_path / "results")


def write_report(folder: Path, results: Path) -> Path:
    target = folder / "report.html"
    assert main(["report", str(results), "-o", str(target)]) == 0
    return target


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """The page of twelve runs, written once."""
    folder = tmp_path_factory.mktemp("report")
    return write_report(folder, write_some(folder / "results"))


@pytest.fixture
def opened(browser, report):
    """The browser, with the page just opened."""
    open_page(browser, report)
    return browser


def open_page(browser, path: Path) -> None:
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())


def find(browser, selector: str):
    return browser.find_element("css selector", selector)


def requests(browser) -> list[str]:
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m for m in sent if m["method"] == "Network.requestWillBeSent"]
    return [message["params"]["request"]["url"] for message in sent]


def test_the_page_opens_offline_without_errors_or_requests(opened):
    assert find(opened, "body").get_attribute("data-ready") == "yes"
    assert find(opened, "#count").text == "12 of 12 runs"
    assert find(opened, "#scatter").get_attribute("data-marks") == "12"
    assert find(opened, "#lines").get_attribute("data-lines") == "12"
    assert [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert [url for url in requests(opened) if not url.startswith("file://")] == []
    assert "1 diverged" in find(opened, "#summary").text


def test_hovering_a_run_shows_its_config_and_log(opened):
    """Narrowed to the diverged run, its mark is the only one; the pointer goes there."""
    find(opened, "#query").send_keys("outcome=diverged")
    x, y, _ = opened.execute_script("return dots[0]")

    place = "const r = document.getElementById('scatter').getBoundingClientRect();"
    opened.execute_script(
        place + "document.getElementById('scatter').dispatchEvent(new MouseEvent('mousemove',"
        "{clientX: r.left + arguments[0], clientY: r.top + arguments[1], bubbles: true}));",
        x,
        y,
    )

    assert find(opened, "#tip").is_displayed()
    assert "outcome: diverged" in find(opened, "#tip").text
    assert "global_batch: 256" in find(opened, "#tip").text
    assert "loss nan at step 8" in find(opened, "#tip").text


def test_a_filter_narrows_plots_and_table(opened):
    find(opened, "#query").send_keys("global_batch>300 warmup_epochs=5")

    assert find(opened, "#count").text == "4 of 12 runs"
    assert find(opened, "#scatter").get_attribute("data-marks") == "4"
    assert len(opened.find_elements("css selector", "#table tr")) == 1 + 4


def test_a_click_on_a_heading_sorts_the_table(opened):
    heads = [head.text for head in opened.find_elements("css selector", "#table th")]
    column = heads.index("global_batch")

    for _ in range(2):
        opened.find_elements("css selector", "#table th")[column].click()

    rows = opened.find_elements("css selector", "#table tr")[1:]
    shown = [row.find_elements("css selector", "td")[column].text for row in rows]
    assert shown == ["256"] * 4 + ["1,024"] * 4 + ["4,096"] * 4


def test_axes_colour_and_panels_can_be_chosen(opened):
    for key, value in (("x", "peak_lr"), ("color", "outcome"), ("facet", "warmup_epochs")):
        find(opened, f"#choose-{key} option[value='{value}']").click()

    assert find(opened, "#scatter").get_attribute("data-marks") == "12"
    assert find(opened, "#legend").text.split() == ["outcome", "diverged", "finished"]


def test_markup_in_a_config_is_text(browser, tmp_path):
    runs = some_runs().assign(reason=EVIL, data_about=EVIL, model=EVIL, lr_rule=EVIL)
    runs["config_json"] = [json.dumps({"note": EVIL + str(i)}) for i in range(len(runs))]
    write_results(tmp_path / "evil", runs, simulated_curves(runs, 2))

    open_page(browser, write_report(tmp_path, tmp_path / "evil"))

    assert browser.title == "Runs"
    assert browser.find_elements("css selector", "img") == []
    assert EVIL in find(browser, "#summary").text


def test_a_live_page_shows_runs_that_end_while_it_is_open(browser, results):
    server = make_server(Watcher([str(results)], "watch"), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser.get(f"http://127.0.0.1:{server.server_address[1]}/")
    wait(browser, "12 of 12 runs")

    more = some_runs().iloc[:1].assign(run_id="ffffffffffff", seed=9)
    write_results(results, more, simulated_curves(more, 2))

    wait(browser, "13 of 13 runs")
    server.shutdown()
    server.server_close()


def wait(browser, text: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda b: find(b, "#count").text == text)


def test_the_server_refuses_other_hosts_names_and_other_paths(results):
    server = make_server(Watcher([str(results)], "watch"), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"

    codes = []
    for path, host in (("/", "evil.example"), ("/../etc/passwd", "127.0.0.1"), ("/", "localhost")):
        request = urllib.request.Request(base + path, headers={"Host": host})
        try:
            with urllib.request.urlopen(request) as answer:
                codes.append(answer.status)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
            error.close()
    server.shutdown()
    server.server_close()

    assert codes == [403, 404, 200]


def test_no_text_of_the_data_can_end_its_element():
    text = as_json({"x": EVIL + "\u2028&"})

    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["x"] == EVIL + "\u2028&"


def test_the_page_names_no_other_place():
    text = page(None)

    assert "default-src 'none'" in text
    assert "connect-src 'none'" in text
    assert "http://" not in text
    assert "https://" not in text


def test_an_empty_folder_makes_a_page_that_says_so(tmp_path):
    data = report_data([str(tmp_path)], "command")

    assert data["num_runs"] == 0
    assert "No runs yet." in page(data)


def test_the_data_names_files_that_could_not_be_read(results):
    next((results / "runs").iterdir()).write_bytes(b"")

    data = report_data([str(results)], "command")

    assert data["num_runs"] == 11
    assert data["unread"][0].endswith("the file is empty (0 bytes)")
