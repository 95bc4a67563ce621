"""Checks the documents: every relative link resolves, headings included, and every page is reachable.

Looked at: README.md, CHANGELOG.md and all of docs/. A page under docs/ must be reachable by links from docs/README.md.
Prints one line a finding and exits with 1 if there is one.

usage: check_docs.py [ROOT]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import unquote

FENCE = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]^]+\]:\s*<?(\S+?)>?(?:\s|$)", re.MULTILINE)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
ABSOLUTE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def links(text: str) -> list[str]:
    """Targets of all links and images of a page, those in code left out."""
    prose = CODE.sub("", FENCE.sub("", text))
    return [target for target in LINK.findall(prose) + REFERENCE.findall(prose) if not ABSOLUTE.match(target)]


def anchors(text: str) -> set[str]:
    """Names that headings can be linked by: lower case, punctuation dropped, blanks to hyphens, repeats numbered."""
    names: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        base = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        name, count = base, 0
        while name in names:
            count += 1
            name = f"{base}-{count}"
        names.add(name)
    return names


def check(root: Path) -> list[str]:
    """Findings of one repository, in order of the pages."""
    root = root.resolve()
    index = root / "docs" / "README.md"
    pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
    if index not in pages:
        pages.append(index)
    findings: list[str] = []
    leads_to: dict[Path, set[Path]] = {}
    for page in pages:
        where = page.relative_to(root)
        if not page.is_file():
            findings.append(f"{where}: missing")
            continue
        text = page.read_text(encoding="utf-8")
        leads_to[page] = set()
        for target in links(text):
            path, _, anchor = unquote(target).partition("#")
            goal = (page.parent / path).resolve() if path else page
            leads_to[page].add(goal / "README.md" if goal.is_dir() else goal)
            if not goal.exists():
                findings.append(f"{where}: {target}: no such file")
            elif not goal.is_relative_to(root):
                findings.append(f"{where}: {target}: outside the repository")
            elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
                findings.append(f"{where}: {target}: no such heading")
    reached = _reachable(index, leads_to)
    findings += [
        f"{page.relative_to(root)}: not reachable from docs/README.md"
        for page in leads_to
        if page.is_relative_to(root / "docs") and page not in reached
    ]
    return findings


def _reachable(start: Path, leads_to: dict[Path, set[Path]]) -> set[Path]:
    reached: set[Path] = set()
    todo = [start]
    while todo:
        page = todo.pop()
        if page not in reached:
            reached.add(page)
            todo += leads_to.get(page, ())
    return reached


def main() -> int:
    """Check the repository this script stands in, or ROOT."""
    findings = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    for finding in findings:
        print(finding)
    print(f"documents: {len(findings)} finding(s)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
