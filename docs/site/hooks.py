"""What the site needs of pages that are written to be read in the repository, too.

A link out of `docs/` leads to a file of the repository, which the site has not: its text stays, and names the file. Lists
that follow a paragraph at once, and those that are indented by two spaces, are lists to GitHub and not to Python-Markdown.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs runs this file by itself, wherever it was started

from docs.site.reference import pages

OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s]*)\)")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^( *)(?:[-*]|\d+\.) +\S")


def on_config(config: Any) -> Any:
    """mkdocs calls this before anything else: what the navigation does not name comes last."""
    folder = Path(config["docs_dir"])
    config["nav"] = with_the_rest(config["nav"], [str(path.relative_to(folder)) for path in folder.rglob("*.md")])
    return config


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this with the site's files: the reference is made now, so that it is never old."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def with_the_rest(navigation: list[Any], written: list[str]) -> list[Any]:
    """The navigation, and under "More" the pages that it does not name."""
    named = set(named_pages(navigation))
    rest = sorted(set(written) - named)
    return [*navigation, {"More": rest}] if rest else navigation


def named_pages(navigation: Any) -> list[str]:
    """The pages that a navigation names, in order."""
    if isinstance(navigation, str):
        return [navigation]
    children = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for child in children for page in named_pages(child)]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs calls this with each page before it is rendered."""
    return in_python_markdown(named_outside(markdown, page.file.src_uri))


def named_outside(markdown: str, page: str) -> str:
    """The page with its links to files outside of `docs/` as their texts and paths."""

    def name(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))
        if path.startswith("docs/"):
            return found.group(0)
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return OUTSIDE.sub(name, markdown)


def in_python_markdown(markdown: str) -> str:
    """The page with an empty line before each list and its nested items indented by four spaces for every level."""
    written: list[str] = []
    fenced, in_list = False, False
    for line in markdown.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        if fenced:
            written.append(line)
            continue
        item = ITEM.match(line)
        if item:
            if not in_list and written and written[-1].strip():
                written.append("")
            in_list = True
        elif not line.strip():
            in_list = False
        if in_list and line.startswith(" "):
            depth = (len(line) - len(line.lstrip()) + 1) // 2
            line = " " * (4 * depth) + line.lstrip()
        written.append(line)
    return "\n".join(written)
