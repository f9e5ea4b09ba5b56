"""Links of the docs lead to files, and to headings, that are there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "studies", "examples", "benchmarks", "kernels", "autotune")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_MENTIONED = re.compile(r"\bdocs/[\w/-]+\.md\b")


@cache
def _text(page: Path) -> str:
    """A page without what stands in fences, where nothing is a link or a heading."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings, as GitHub makes them; of equal ones, a number tells them apart."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_text(page)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return frozenset(f"{name}-{i}" if i else name for name, last in found.items() for i in range(last + 1))


def _is_broken(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    file = (page.parent / target).resolve() if target else page
    if not file.exists():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in _anchors(file)


def broken(page: Path) -> list[str]:
    """Links of a page to other files, or to headings, that are not there."""
    links = [first or second for first, second in _LINK.findall(_text(page))]
    return [link for link in links if not re.match(r"https?:|mailto:", link) and _is_broken(page, link)]


def test_links_lead_somewhere() -> None:
    assert {page: broken(page) for page in PAGES if broken(page)} == {}


def test_broken_links_are_seen(tmp_path: Path) -> None:
    """A missing file and a missing heading; not what is there, in a fence, or on the web."""
    page, other = tmp_path / "a.md", tmp_path / "b.md"
    other.write_text("# One `two`: three\n\n# Twice\n\n# Twice\n")
    good = "[](b.md) [](b.md#one-two-three) [](b.md#twice-1) [](#here) [](https://example.org/no#where)\n"
    bad = '[](c.md) [](b.md#two) [](#there)\n<img src="d.svg">\n'
    page.write_text(f"# Here\n{good}{bad}```\n[](e.md)\n```\n")
    assert broken(page) == ["c.md", "b.md#two", "#there", "d.svg"]


def test_pages_that_are_named_in_the_code_are_there() -> None:
    """In comments, messages and docstrings."""
    kinds = {".py", ".h", ".c", ".cu", ".cuh", ".cpp", ".js"}
    files = (path for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*"))
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in kinds]
    named = {name for text in texts for name in _MENTIONED.findall(text)}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_databases_are_in_the_history() -> None:
    """By the hashes that their page names."""
    text = (ROOT / "studies/databases/README.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| `(\S+)` \| ([0-9a-f]{40}) \|", text, re.MULTILINE))
    assert named and set(re.findall(r"\b[0-9a-f]{40}\b", text)) == set(named.values())
    if _git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip("no clone with the whole history")
    message = _git("cat-file", "--batch-check", given="\n".join(named.values()))
    assert [line for line in message.splitlines() if " blob " not in line] == []


def test_raw_data_are_named() -> None:
    """Each file of results by some page: `h200-farm-one.json.xz`, `-two`, `-part-of-`, several in braces."""
    tokens = {
        Path(name).name.partition(".")[0]
        for page in PAGES
        for word in re.findall(r"`([^`\n]+)`|\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        for name in _each(word[0] or word[1])
    }
    ends = tuple(token for token in tokens if re.match(r"-\w", token))
    parts = [token for token in tokens if re.fullmatch(r"-.+-", token)]
    stems = {path.name.partition(".")[0] for path in (ROOT / "studies/results").rglob("*.*")} - {"README"}
    named = (
        stem for stem in stems if stem.endswith(ends) or tokens & {stem.replace(one, "-") for one in parts}
    )
    assert sorted(stems - tokens - {*named}) == []


def _each(text: str) -> list[str]:
    """What braces stand for: `a-{b,c}.d` is `a-b.d` and `a-c.d`."""
    before, brace, rest = text.partition("{")
    inner, _, after = rest.partition("}")
    return [f"{before}{one}{more}" for one in inner.split(",") for more in _each(after)] if brace else [text]


def _git(*words: str, given: str = "") -> str:
    """What git prints in the checkout; nothing where it is none."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False).stdout
