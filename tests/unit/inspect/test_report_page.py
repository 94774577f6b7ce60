"""The page of a report, in a browser: what it shows, by keyboard too, of models of any size, and of hostile text."""

import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_samples import HOSTILE, TEMPLATE, encoder, flat, hostile, page

ROOT = Path(__file__).parents[3]
AXE = ROOT / "report" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = "overview modules kernels graph passes fusion guards memory constants compile code".split()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        if CHROMIUM is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no chromium: apt-get install chromium, or playwright install chromium")
        made = playwright.chromium.launch(executable_path=CHROMIUM)
        yield made
        made.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a report; whatever it asked of a network, or complained of, fails the test."""
    pages = []

    def open_page(data, place="overview/0/", compressed=False, ready="yes", **options):
        path = tmp_path / "report.html"
        path.write_text(data if isinstance(data, str) else page(data, compressed), encoding="utf-8")
        made = browser.new_page(viewport={"width": 1300, "height": 850}, **options)
        made.complaints = []
        made.on(
            "request", lambda request: request.url.startswith("file:") or made.complaints.append(request.url)
        )
        made.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.on(
            "console", lambda said: said.type in ("error", "warning") and made.complaints.append(said.text)
        )
        made.on("dialog", lambda dialog: made.complaints.append(dialog.message) or dialog.dismiss())
        made.goto(f"{path.as_uri()}#{place}")
        # By locators alone: the page's policy refuses the scripts that other waits poll with.
        made.locator("html[data-ready]").wait_for(state="attached")
        assert made.evaluate("document.documentElement.dataset.ready") == ready
        pages.append(made)
        return made

    yield open_page
    for made in pages:
        complaints = made.complaints
        made.close()
        assert complaints == []


@pytest.fixture(scope="module")
def bert():
    return encoder(12)


def go(shown, view, selected=""):
    shown.evaluate(f"location.hash = '{view}/0/{selected}'")
    shown.locator(f"nav [aria-current][href^='#{view}']").wait_for(state="attached")


def test_the_policy_allows_this_script_and_this_style_only():
    text = TEMPLATE.read_text(encoding="utf-8")

    def digest(tag):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest('script')}'; " in policy
    assert f"style-src 'sha256-{digest('style')}'; " in policy
    assert "unsafe" not in policy


def test_licences_are_in_the_page():
    licenses = TEMPLATE.with_name("LICENSES.txt").read_text(encoding="utf-8")
    assert "@dagrejs/dagre" in licenses and "@dagrejs/graphlib" in licenses
    assert licenses.count("Permission is hereby granted") == 2
    assert f'<script type="text/plain" id="licenses">{licenses}</script>' in TEMPLATE.read_text(
        encoding="utf-8"
    )


def test_the_sources_build_this_page(tmp_path):
    if shutil.which("node") is None or not (ROOT / "report" / "node_modules").exists():
        pytest.skip("no node, or no node_modules: make report")
    subprocess.run(["node", str(ROOT / "report" / "build.mjs"), str(tmp_path)], check=True)
    for name in ("report.html", "LICENSES.txt"):
        assert (tmp_path / name).read_bytes() == TEMPLATE.with_name(name).read_bytes(), "make report"


def test_overview_says_first_what_to_mend(show, bert):
    shown = show(bert)
    assert shown.title() == "BertModel – Lampwork report"
    headings = shown.locator("main h2").all_inner_texts()
    assert headings[:2] == ["forward#0", "What to mend first"]
    first, second = shown.locator("article").all_inner_texts()
    assert (
        "Graph break" in first
        and "LW101" in first
        and "Use torch.where" in first
        and "if h.sum() > 0:" in first
    )
    assert "Compiled again" in second and "compiled for\n128\nnow\n200" in second
    tiles = shown.locator(".tiles").inner_text()
    assert "100\u202fms" in tiles and "85" in tiles and "1.91\u202fMiB" in tiles and "1.13\u202fs" in tiles


def test_what_happens_again_at_one_place_is_said_once(show, bert):
    shown = show(bert | {"records": [*bert["records"], bert["records"][0]]})
    assert shown.locator("article").count() == 2
    assert "2 times" in shown.locator("article").first.inner_text()


def test_nothing_to_mend_is_said_too(show, bert):
    assert "all of it was compiled, once" in show(bert | {"records": []}).locator("main").inner_text()


def test_time_of_a_kernel_counts_in_the_module_that_holds_all_of_it(show, bert):
    shown = show(bert, "modules/0/")
    tree = shown.get_by_role("treegrid")
    tree.get_by_role("row").nth(1).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowRight"):
        shown.keyboard.press(key)
    rows = [row.split("\n") for row in tree.get_by_role("row").all_inner_texts()]
    found = {row[1] if row[0] in "▾▸" else row[0]: row for row in rows}
    assert found["encoder"][2:5] == ["100\u202fms", "100\u202f%", "0\u202fs"]
    assert "8.36\u202fms" in found["11"] and "2.65\u202fms" in found["11"]
    shown.keyboard.press("ArrowLeft")
    assert tree.get_by_role("row").count() == 5


def test_a_kernel_is_shown_from_the_line_to_the_assembly(show, bert):
    shown = show(bert, "kernels/0/k5")
    panel = shown.locator("aside")
    assert panel.locator("h2").inner_text() == "add_layer_norm_5"
    text = panel.inner_text()
    assert "x = self.norm1(x + self.out(y))" in text
    assert "add_10 = add(embedding_3, linear_9)" in text
    assert "pointwise work follows its reduction over the same rows" in text
    assert "52.0\u202fµs" in text and "17.3\u202fGFLOP/s" in text
    assert panel.locator("svg.roofline .chosen").count() == 1
    assert "y[i, j] = x[i, j] + z[i, j]" in text
    panel.get_by_role("tab", name="Loops").focus()
    shown.keyboard.press("ArrowRight")
    assert "define void @k()" in panel.inner_text()
    shown.keyboard.press("ArrowRight")
    assert "400 lines" in panel.inner_text() and "vmovups zmm0, [rdi + 0]" in panel.inner_text()
    panel.get_by_role("region", name="Assembly").evaluate("each => each.scrollTop = 1e6")
    panel.get_by_text("[rdi + 25536]").first.wait_for(state="attached")
    shown.get_by_role("row").nth(1).click()
    assert panel.locator("h2").inner_text() == "gemm_6"
    shown.keyboard.press("Escape")
    assert not panel.is_visible()


def test_times_say_of_how_many_runs_they_are(show):
    data = encoder(1)
    region = data["regions"][0]
    region |= {"time": 2e-2, "runs": 30}
    made = show(data)
    assert "a run, median of 30" in made.locator("dl.tiles").inner_text()
    made = show(data, "kernels/0/")
    assert made.locator("p.note").count() == 0
    region["runs"] = 1
    made = show(data)
    assert "a run, seen once" in made.locator("dl.tiles").inner_text()
    made = show(data, "kernels/0/")
    assert "the first run of a version is slower" in made.locator("p.note").inner_text()


def test_the_limit_of_a_kernel_is_what_the_report_says(show):
    data = encoder(1)
    group = next(each for each in data["regions"][0]["groups"] if each["kind"] == "gemm")
    group |= {"least": group["time"] / 4, "bound": "memory", "dtype": "int8"}
    data["machine"] |= {
        "peak_gflops": {"float32": 150.0, "float16": 150.0, "int8": 600.0},
        "peak_gbs": 10.0,
        "peak_cache_gbs": 80.0,
    }
    made = show(data, f"kernels/0/{group['id']}")
    assert "25\u202f% of it, set by memory" in made.locator("aside").inner_text()
    # The limits of what these kernels compute in, and no others.
    labels = made.locator(".fill svg.roofline text").all_text_contents()
    limits = [text for text in labels if text.endswith("FLOP/s") and text != "GFLOP/s"]
    assert limits == ["float32 150\u202fGFLOP/s", "int8 600\u202fGFLOP/s"]
    assert made.locator(".fill svg.roofline .cache").count() == 1


def test_what_compiled_models_have_is_shown(show):
    """Stacks by number, parts of nodes in decisions, kernels that share a node, passes that only count, two halves."""
    data = encoder(1)
    region = data["regions"][0]
    frames = [
        ["train.py", 12, "main"],
        ["models/encoder.py", 6, "forward"],
        ["torch/nn/functional.py", 9, "gelu"],
    ]
    for node in region["graphs"]["recorded"]["nodes"]:
        if node["op"] == "aten::gelu":
            node |= {"stack": 0, "file": "models/encoder.py", "line": 6, "op": "aten::gelu.default"}
            node["results"] = [{"dtype": "float32", "shape": [1, "s0"]}, {"dtype": "int64", "shape": []}]
    region["graphs"]["steps"] = [{"pass": "rewrites", "before": 30, "after": 28, "hits": {"add_zero": 2}}]
    region["graphs"]["optimized"] = []
    region["groups"].append(
        {"id": "k99", "name": "pack rows", "kind": "pack", "nodes": ["gelu_13"], "flops": 0}
    )
    region["fusion"] = [
        {"what": "epilogue", "a": "gelu_13_mean", "fused": False, "why": "two definitions read it"}
    ]
    region["backward"] = {"name": "forward#0", "groups": []}
    shown = show(data | {"frames": frames, "stacks": [[0, 1, 2]]}, "fusion/0/gelu_13")
    text = shown.locator("aside").inner_text()
    assert "models/encoder.py:6 in forward" in text and "called from 1 frame" in text
    assert "float32[1, s0], int64[]" in text
    assert "gemm_6" in text and "pack rows" in text
    assert "epilogue gelu_13_mean" in text and "two definitions read it" in text
    shown.get_by_role("row").nth(1).get_by_role("button", name="gelu_13_mean").click()
    assert shown.locator("aside h2").inner_text() == "gelu_13"
    go(shown, "passes")
    assert "30 nodes before, 28 after" in shown.locator("main").inner_text()
    assert "Applied: add_zero × 2" in shown.locator("main").inner_text()
    go(shown, "graph", "k99")
    assert shown.locator(".box.chosen").inner_text().startswith("▸\ngemm_6")
    assert shown.get_by_role("combobox").locator("option").all_inner_texts()[2] == "forward#0 · backward"


def test_the_graph_opens_by_keyboard(show, bert):
    shown = show(bert, "graph/0/")
    assert shown.get_by_role("treeitem", name="encoder.layer").get_attribute("aria-expanded") == "true"
    shown.get_by_role("button", name="Close all boxes").click()
    assert shown.get_by_role("treeitem").count() == 5
    box = shown.get_by_role("treeitem", name="encoder.layer")
    box.focus()
    shown.keyboard.press("ArrowRight")
    assert shown.get_by_role("treeitem").count() == 17
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowRight")
    assert shown.evaluate("document.activeElement.innerText").startswith("▾\n0\n8.36")
    shown.keyboard.press("ArrowLeft")
    shown.keyboard.press("ArrowLeft")
    shown.keyboard.press("ArrowLeft")
    assert shown.get_by_role("treeitem").count() == 5
    assert shown.locator("path.edge").count() == 4


def test_a_selection_opens_the_boxes_around_it(show, bert):
    shown = show(bert, "graph/0/k61")
    chosen = shown.locator(".box.chosen")
    assert chosen.inner_text().startswith("▸\nadd_layer_norm_61")
    assert shown.locator(".edge.near").count() == 1
    shown.keyboard.press("Escape")
    assert shown.locator(".box.chosen").count() == 0


def test_the_slider_shows_what_each_pass_changed(show, bert):
    shown = show(bert, "passes/0/")
    slider = shown.get_by_role("slider")
    assert slider.get_attribute("aria-valuetext") == "remove-noops"
    assert "12 removed · 12 changed" in shown.locator("main").inner_text()
    changed = shown.locator(".row-changed").first
    assert changed.locator("del").inner_text() == "gelu(linear_12)"
    assert changed.locator("ins").inner_text() == "gelu(linear_12, approximate='none')"
    slider.focus()
    shown.keyboard.press("ArrowRight")
    assert "48 added · 96 removed" in shown.locator("main").inner_text()
    # The rows of a rewrite stand together, in the order of the program.
    states = [row.split("\n")[:2] for row in shown.locator(".rows .row").all_inner_texts()[:3]]
    assert states == [["− removed", "t_linear_4"], ["− removed", "mm_linear_4"], ["+ added", "linear_4"]]
    shown.get_by_role("button", name="linear_of_product").click()
    assert "x @ w.t() -> linear(x, w)" in shown.locator("main").inner_text()
    assert shown.locator(".rows .row").count() == 3
    slider.focus()
    shown.keyboard.press("Home")
    assert shown.locator("main h2").inner_text() == "As recorded"


def test_fusion_decisions_can_be_told_apart(show, bert):
    shown = show(bert, "fusion/0/")
    shown.get_by_role("button", name="Apart 60").click()
    assert shown.locator(".verdict.yes").count() == 0 and shown.locator(".verdict.no").count() > 5
    assert "a product of its own kernel reads all of it first" in shown.locator("main").inner_text()


def test_memory_and_compile_time_answer_the_arrow_keys(show, bert):
    shown = show(bert, "memory/0/")
    assert "most alive at once" in shown.locator("main").inner_text()
    shown.locator("canvas").focus()
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowRight")
    assert (
        shown.locator(".readout").inner_text()
        == "linear_4 · 384\u202fKiB · steps 1–4 · at 391\u202fKiB · arena"
    )
    shown.keyboard.press("Enter")
    assert shown.locator("aside h2").inner_text() == "linear_4"
    go(shown, "compile")
    shown.locator("canvas").focus()
    shown.keyboard.press("ArrowRight")
    assert shown.locator(".readout").inner_text() == "compile · 1.13\u202fs"


def test_search_finds_names_operators_modules_and_lines(show, bert):
    shown = show(bert)
    options = shown.locator("dialog [role=option]")

    def find(words):
        shown.keyboard.press("/")
        shown.get_by_role("combobox", name="Search").fill(words)
        return options.first.inner_text()

    assert find("gelu_26").startswith("node\ngelu_26")
    shown.keyboard.press("Enter")
    assert shown.locator("aside h2").inner_text() == "gelu_26"
    assert find("F.gelu").startswith("line\nh = F.gelu(self.up(x))")
    shown.keyboard.press("Escape")
    assert shown.locator("aside").is_visible()
    assert find("encoder.layer.3.attention").startswith("module\nencoder.layer.3.attention")
    shown.keyboard.press("Escape")
    assert "attention" in find("scaled_dot 3")
    shown.get_by_role("combobox", name="Search").fill("no such thing")
    assert options.count() == 0
    shown.keyboard.press("Enter")
    assert not shown.locator("dialog[open]").count()


def test_back_goes_back(show, bert):
    shown = show(bert)
    shown.keyboard.press("4")
    assert shown.locator("h1").inner_text() == "Graph"
    shown.go_back()
    shown.locator("h1", has_text=re.compile("^Overview$")).wait_for()


def test_the_theme_follows_the_system_until_it_is_chosen(show, bert):
    shown = show(bert, color_scheme="dark")
    ink = "getComputedStyle(document.body).backgroundColor"
    dark = shown.evaluate(ink)
    shown.get_by_role("button", name="Light colours").click()
    light = shown.evaluate(ink)
    assert dark == "rgb(22, 21, 19)" and light == "rgb(250, 249, 246)"
    shown.get_by_role("button", name="Dark colours").click()
    assert shown.evaluate(ink) == dark


def test_print_has_the_content_only(show, bert):
    shown = show(bert, "kernels/0/k5", color_scheme="dark")
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.locator("nav").is_visible() and not shown.locator("footer").is_visible()
    assert shown.locator("aside").is_visible()
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator(".rows .row").count() == 85
    shown.set_viewport_size({"width": 700, "height": 900})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 700


def test_a_narrow_window_scrolls_one_way(show, bert):
    shown = show(bert)
    shown.set_viewport_size({"width": 380, "height": 700})
    for view in VIEWS:
        go(shown, view)
        assert shown.evaluate("document.documentElement.scrollWidth") <= 380, view


AXE_RUNS = {
    "light": (
        ["overview", "modules", "kernels", "graph", "passes", "fusion", "guards", "memory", "code"],
        {},
    ),
    "dark": (["overview", "graph", "passes"], {"runOnly": ["color-contrast"]}),
}


@pytest.mark.parametrize("scheme", AXE_RUNS)
def test_every_view_passes_axe(show, scheme):
    if not AXE.exists():
        pytest.skip("no axe-core: npm ci in report/")
    shown = show(encoder(2), color_scheme=scheme)
    shown.evaluate(AXE.read_text(encoding="utf-8"))
    found = {}
    views, options = AXE_RUNS[scheme]
    for view in views:
        go(shown, view, "k5" if view == "graph" else "")
        result = shown.evaluate("options => axe.run(options)", options | {"resultTypes": ["violations"]})
        found |= {
            f"{view}: {each['id']}": [node["html"] for node in each["nodes"]] for each in result["violations"]
        }
    assert found == {}


def test_text_of_a_program_stays_text(show):
    shown = show(hostile())
    for view in VIEWS:
        go(shown, view, "k3")
        assert shown.locator("#page img, #page b").count() == 0, view
    assert HOSTILE.replace("\u2028", "") in shown.locator("aside").inner_text().replace("\u2028", "").replace(
        "\n", ""
    )


def test_code_that_gets_in_does_not_run(show, bert):
    """The policy stops what escaping missed: scripts, handlers, pictures and calls to other places."""
    shown = show(bert)
    shown.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.ran = 1";
        document.body.append(script);
        const element = document.createElement("p");
        element.setAttribute("onclick", "window.ran = 2");
        document.body.append(element);
        element.click();
    }""")
    assert shown.evaluate("window.ran") is None
    assert shown.evaluate("fetch('https://example.org/').then(() => 'went', () => 'refused')") == "refused"
    assert len(shown.complaints) >= 3 and all("Content Security Policy" in each for each in shown.complaints)
    shown.complaints.clear()


def test_compressed_data_shows_the_same(show, bert):
    plain = show(bert).locator("main").inner_text()
    assert show(bert, compressed=True).locator("main").inner_text() == plain


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "This page holds no report"),
        ({"format": 2, "regions": []}, "This page reads reports of format 1; this one says 2."),
        ({"format": 1}, "The report has no list of regions."),
    ],
)
def test_what_is_no_report_is_called_so(show, data, says):
    shown = show(data, ready="failed")
    assert says in shown.get_by_role("alert").inner_text()
    assert len(shown.complaints) == 1 and says in shown.complaints.pop()


@pytest.mark.parametrize(
    "data", [{"format": 1, "regions": []}, {"format": 1, "regions": [{"name": "empty#0"}]}]
)
def test_what_is_not_known_is_left_out(show, data):
    shown = show(data)
    for view in VIEWS:
        go(shown, view, "nothing")
        assert shown.locator("main").inner_text().strip()
        assert "knows nothing of it" in shown.locator("aside").inner_text()


@pytest.mark.parametrize("make", [lambda: encoder(1540), lambda: flat(20_000)], ids=["modules", "flat"])
def test_twenty_thousand_nodes_draw_no_more_than_a_screen_of_them(show, make):
    """What is drawn does not grow with the graph; times are measured by report/measure.py."""
    shown = show(make(), compressed=True)
    for view in ("kernels", "graph", "passes"):
        go(shown, view)
        assert shown.evaluate("document.querySelectorAll('*').length") < 2500, view
    shown.keyboard.press("/")
    shown.get_by_role("combobox", name="Search").fill("add_1000")
    options = shown.locator("dialog [role=option]")
    assert "add_1000" in options.first.inner_text()
    assert options.count() <= 60
