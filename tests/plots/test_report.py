"""The report: what it holds, and that it works in a real browser."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from layoutopt.plots.report import report_html
from layoutopt.sweep.points import Point
from layoutopt.sweep.store import Store
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.plots.builders import stored

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

REQUIRED = "LAYOUTOPT_REQUIRE_BROWSER" in os.environ
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Page(HTMLParser):
    """Links, targets and sources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(named["href"])
        elif "src" in named or "href" in named:
            self.sources.append(named.get("src") or named["href"])
        if "id" in named:
            self.ids.append(named["id"])


def page_of(folder: Path, **keys: Any) -> str:
    with Store.open(stored(folder, **keys)) as store:
        return report_html(store)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two GPU types in four sizes."""
    return page_of(tmp_path_factory.mktemp("sizes"))


def test_one_file_that_loads_nothing(text: str) -> None:
    page = Page(text)
    assert page.sources
    assert all(source.startswith("data:") for source in page.sources)
    assert "default-src 'none'" in text
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.ids) == len(set(page.ids))


def test_question_answers_assumptions_and_accuracy_are_there(text: str) -> None:
    assert "Sweep of 8 questions" in text
    assert "6 optimal, 2 infeasible" in text
    assert "strong scaling" in text
    assert text.count("<tr><td") + text.count('<tr class="none"><td') >= 8
    assert "recompute=full:3" in text
    assert "A10. " in text
    assert "measured runs" in text
    assert "heat map needs several tp and pp" in text


def test_words_of_the_spec_are_shown_not_run(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    stored(tmp_path)
    with Store.create(tmp_path) as store:
        row = {"status": "failed", "reason": nasty}
        store.put(Point("k", {"gpus": nasty}, {}, "strong"), 99, row)
    with Store.open(tmp_path) as store:
        text = report_html(store)
    assert nasty not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2


def test_the_command_writes_pages_and_rows(run: Run, tmp_path: Path) -> None:
    stored(tmp_path)
    page, rows = tmp_path / "r.html", tmp_path / "r.csv"
    assert run("report", str(tmp_path), "--out", str(page)).out == f"written: {page}\n"
    assert page.read_text("utf-8").startswith("<!doctype html>")
    ran = run("report", str(tmp_path), "--out", str(rows), "--filter", "gpus <= 128")
    assert ran.out == f"4 rows written to {rows}\n"
    ran = run("report", str(tmp_path), "--out", str(rows), "--columns", "nemo")
    assert ran.out == f"6 rows written to {rows}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "results are missing"),
        (["R"], "--out is missing"),
        (["R", "--out", "x.doc"], r"\.parquet"),
        (["R", "--out", "x.html", "--columns", "nemo"], "--columns is for rows"),
        (["R", "--out", "x.csv", "--columns", "nimo"], "nemo"),
        (["none", "--out", "x.html"], r"results\.sqlite"),
    ],
)
def test_what_the_command_refuses(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "R")
    ran = run("report", *arguments)
    assert ran.code == 2
    assert re.search(words, ran.err), ran.err


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless."""
    if not REQUIRED:
        pytest.importorskip("playwright", reason="playwright is not installed")
        if CHROMIUM is None:
            pytest.skip("chromium is not installed")
    assert CHROMIUM, "LAYOUTOPT_REQUIRE_BROWSER is set, but there is no chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container's root has no sandbox; the page is ours.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def test_a_browser_sorts_filters_links_and_has_no_complaint(
    browser: Any, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())

    def column(heading: str) -> list[str]:
        place = page.locator("#table thead th").all_inner_texts().index(heading)
        cells = page.locator(f"#table tbody tr:visible td:nth-child({place + 1})")
        found: list[str] = cells.all_inner_texts()
        return found

    def click(heading: str) -> list[str]:
        page.get_by_role("button", name=heading, exact=True).click()
        return column(heading)

    assert column("gpus") == ["64", "64", "128", "128", "256", "256", "4,096", "4,096"]
    days = [float(text) for text in click("days") if text]
    assert days == sorted(days)
    assert column("days")[-2:] == ["", ""]
    assert page.locator("#table th[aria-sort=ascending]").inner_text() == "days"
    assert [float(text) for text in click("days") if text] == sorted(days, reverse=True)
    assert column("days")[-2:] == ["", ""]
    assert click("gpu") == ["b200"] * 4 + ["h100"] * 4
    page.get_by_label("Show rows with").fill("h100 optimal")
    assert column("gpu") == ["h100"] * 3
    assert page.locator("#shown").inner_text() == "3 of 8 rows"
    page.get_by_label("Show rows with").fill("")
    page.get_by_role("link", name="Assumptions").click()
    assert page.url.endswith("#assumptions")
    page.locator("#table tbody tr:first-child a").first.click()
    assert page.locator("dt:target").count() == 1
    sizes = page.locator("figure img").evaluate_all("all => all.map(i => i.naturalWidth)")
    assert len(sizes) == 5
    assert min(sizes) > 300
    assert said == []
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    look_at(page.screenshot(full_page=True))
    page.close()


def look_at(picture: bytes) -> None:
    """The page is as high as its plots, and is not blank: text, lines, and the curves' colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    assert image.height > 2000
    colors: set[Any] = {color for _, color in image.getcolors(maxcolors=1 << 24) or ()}
    assert (255, 255, 255) in colors
    assert {(0, 0x72, 0xB2), (0xD5, 0x5E, 0)} <= colors
    assert len(colors) > 200
