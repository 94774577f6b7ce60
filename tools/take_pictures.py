"""Takes the pictures in docs/pictures: a report of tools/pictured.py, in a browser. `make pictures`.

Look at them before they are committed: what they show stands in the text beside them.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZE = {"width": 1200, "height": 720}
LARGEST = 120_000
# The browser itself makes WebP of what it has drawn.
TO_WEBP = """async source => {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.8);
}"""


def overview(shown: Any) -> None:
    shown.get_by_text("What to mend first").wait_for()


def graph(shown: Any) -> None:
    """With the product open that gelu was fused into."""
    shown.get_by_role("treeitem", name="gemm gelu").first.click()
    shown.locator("aside h2", has_text="gelu").wait_for()


def passes(shown: Any) -> None:
    """The pass that changes the most of what a reader knows: the factor of one goes."""
    shown.get_by_role("slider").focus()
    for _ in range(30):
        if shown.locator("main h2").inner_text() == "algebra":
            return
        shown.keyboard.press("ArrowRight")
    raise RuntimeError("the report has no pass algebra")


def memory(shown: Any) -> None:
    shown.get_by_text("most alive at once").wait_for()


def kernels(shown: Any) -> None:
    shown.locator("svg.roofline").first.wait_for()


def code(shown: Any) -> None:
    """The loops of a layer norm, which the list shows further down."""
    shown.get_by_role("row", name="gemm gelu").first.hover()
    shown.mouse.wheel(0, 300)
    shown.get_by_role("row", name="layer_norm").first.click()
    shown.get_by_role("tab", name="Loops").click()
    shown.get_by_role("region", name="Loops").evaluate("each => each.scrollIntoView({block: 'end'})")


# By name of the picture: the place in the report, the colours, and what to do there.
SCENES = {
    "overview": ("overview/0/", "light", overview),
    "graph": ("graph/0/", "light", graph),
    "passes": ("passes/0/", "light", passes),
    "memory": ("memory/0/", "light", memory),
    "kernels": ("kernels/0/", "light", kernels),
    "code": ("kernels/0/", "dark", code),
}


def report(folder: Path) -> Path:
    path = folder / "report.html"
    command = [sys.executable, "-m", "lampwork", "explain", "-o", path, ROOT / "tools" / "pictured.py"]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return path


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = report(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        for name, (place, colours, act) in SCENES.items():
            shown = browser.new_page(viewport=SIZE, color_scheme=colours, device_scale_factor=1.5)  # type: ignore[arg-type]
            shown.goto(f"{path.as_uri()}#{place}")
            shown.locator("html[data-ready]").wait_for(state="attached")
            act(shown)
            shown.wait_for_timeout(500)  # what moves has come to rest
            png = base64.b64encode(shown.screenshot()).decode()
            blank = browser.new_page()
            webp = blank.evaluate(TO_WEBP, f"data:image/png;base64,{png}")
            picture = base64.b64decode(webp.partition(",")[2])
            if len(picture) > LARGEST:
                raise RuntimeError(f"{name} has {len(picture)} bytes, more than {LARGEST}")
            (PICTURES / f"{name}.webp").write_bytes(picture)
            print(name, len(picture))
            if len(sys.argv) > 1:  # a folder for PNG files to look at
                Path(sys.argv[1], f"{name}.png").write_bytes(base64.b64decode(png))
            shown.close()
            blank.close()


if __name__ == "__main__":
    main()
