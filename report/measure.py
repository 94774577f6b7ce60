"""How long reports take to open and to answer, in a browser: `PYTHONPATH=src python report/measure.py`.

Opening is from the start of navigation to the page being there, in milliseconds; an answer is from the event to the
second frame after it, which is when a reader sees it; half a second after the page is there, as readers look first.
Medians, and the best, of some tries.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from playwright.sync_api import sync_playwright
from report_samples import encoder, flat, page

TRIES = 5
ANSWERS = {
    "to the modules": ("overview", "document.querySelectorAll('nav a')[1].click()"),
    "to the kernels": ("overview", "document.querySelectorAll('nav a')[2].click()"),
    "to the graph": ("overview", "document.querySelectorAll('nav a')[3].click()"),
    "to the passes": ("overview", "document.querySelectorAll('nav a')[4].click()"),
    "to the memory": ("overview", "document.querySelectorAll('nav a')[7].click()"),
    "select a box": ("graph", "document.querySelector('.box-group, .box-node').click()"),
    "open a box": ("graph", "[...document.querySelectorAll('[aria-expanded=false] .twist')].pop()?.click()"),
    "move the slider": (
        "passes",
        "const each = document.querySelector('[type=range]'); each.value = 3; each.dispatchEvent(new Event('input'))",
    ),
    "scroll a table": ("kernels", "document.querySelector('.scroller').scrollTop = 1e5"),
    "sort a table": ("kernels", "document.querySelector('.sort')?.click()"),
    "search, first letter": ("overview", "{key('/'); type('a')}"),
    "search, next letter": ("overview", "type('ad')", "{key('/'); type('a')}"),
    "other colours": ("graph", "document.querySelector('.theme').click()"),
}
HELPERS = """
    const key = which => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: which, bubbles: true}));
    const type = text => {
        const field = document.querySelector('dialog.search input');
        field.value = text;
        field.dispatchEvent(new Event('input'));
    };
    const frames = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
"""


def main():
    samples = {"BERT": encoder(12), "modules": encoder(1600), "flat": flat(20_000)}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, data in samples.items():
            path = Path(folder) / f"{name}.html"
            path.write_text(page(data, compressed=name != "BERT"), encoding="utf-8")
            nodes = len(data["regions"][0]["graphs"]["optimized"])
            print(f"{name}: {nodes} nodes, {path.stat().st_size / 1e6:.1f} MB")
            show("open", [opening(browser, path) for _ in range(TRIES)])
            for what, (view, act, *first) in ANSWERS.items():
                show(what, [answer(browser, path, view, act, *first) for _ in range(TRIES)])
        browser.close()


def show(what, times):
    print(f"  {what:22} {statistics.median(times):7.0f} ms, best {min(times):7.0f} ms")


def load(browser, path, view):
    shown = browser.new_page(viewport={"width": 1400, "height": 900})
    shown.goto(f"{path.as_uri()}#{view}/0/")
    shown.locator("html[data-ready]").wait_for(state="attached")
    return shown


def opening(browser, path):
    shown = load(browser, path, "overview")
    time = shown.evaluate("performance.getEntriesByName('lampwork-ready')[0].startTime")
    shown.close()
    return time


def answer(browser, path, view, act, first=""):
    shown = load(browser, path, view)
    shown.wait_for_timeout(500)
    time = shown.evaluate(
        f"async () => {{ {HELPERS} {first}; await frames(); const start = performance.now(); {act}; await frames();"
        " return performance.now() - start; }"
    )
    shown.close()
    return time


if __name__ == "__main__":
    main()
