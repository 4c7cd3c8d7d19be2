"""The documents name what exists: links, files, modules, make targets, commands with options, the glossary's names."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import whole_command

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").glob("*.md")])
SOURCE_ROOTS = (
    "planner", "frontiers", "studies", "simulator", "kube", "operator", "node_agent", "simulated_gpu", "crds", "views",
    "page", "testbed", "cli",
)  # fmt: skip

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
# A path of this repository has a folder or an ending that only files have here.
PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|pyi|md|yaml|yml|csv|json|toml|jinja|c|txt))|[\w-]+(/[\w.-]+)+")
# The command, as it is or as kubectl's plugin.
COMMAND = re.compile(r"(kubectl )?flyball (?=[a-z]|--)")
# What documents speak of that stands in no repository: other machines' paths, files that are made, other projects' names.
ELSEWHERE = re.compile(
    r"^(out|hw|j|s)/|^(report|result|comparison|frontier)\.json$|^train\.py$|^[\w-]+\.(csv|yaml|json)$"
)


@cache
def tracked() -> frozenset[str]:
    """Every file of the repository, and every folder with a slash at its end."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    files = {name for name in listed if (ROOT / name).exists()}
    folders = {f"{parent}/" for name in files for parent in Path(name).parents if parent != Path()}
    return frozenset(files | folders)


def ids(document: Path) -> str:
    return str(document.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    prose = FENCE.sub("", document.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_to_what_exists(document: Path) -> None:
    missing = []
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert missing == []


def named_paths(document: Path) -> Iterator[str]:
    for code in CODE.findall(FENCE.sub("", document.read_text())):
        for word in code.split():
            word = word.strip(",;:()\"'").removeprefix("./")
            word = word.partition("::")[0]
            if PATH.fullmatch(word) and not ELSEWHERE.match(word):
                yield word


def exists(name: str) -> bool:
    """Whether a document's name for a file or folder is that of one, whole or as the end of its path."""
    wanted = name.rstrip("/")
    return any(one.rstrip("/") == wanted or one.rstrip("/").endswith(f"/{wanted}") for one in tracked())


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_files_and_folders_that_are_named_exist(document: Path) -> None:
    first = {name.partition("/")[0] for name in tracked()}
    missing = [
        name
        for name in named_paths(document)
        if (name.partition("/")[0] in first or name.endswith(".py") or name.startswith("flyball_")) and not exists(name)
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_modules_that_are_named_exist(document: Path) -> None:
    missing = []
    for name in re.findall(r"\bflyball_[a-z_]+(?:\.\w+)+", document.read_text()):
        parts = name.split(".")
        if parts[-1] in ("py", "md", "yaml") or not any((ROOT / root / parts[0]).is_dir() for root in SOURCE_ROOTS):
            continue  # a metric, say
        folder = next(ROOT / root / parts[0] for root in SOURCE_ROOTS if (ROOT / root / parts[0]).is_dir())
        for part in parts[1:]:
            module = folder / f"{part}.py"
            if module.exists() or not (folder / part).is_dir():
                source = module if module.exists() else folder / "__init__.py"
                if not module.exists() and not re.search(rf"\b{part}\b", source.read_text()):
                    missing.append(name)
                break
            folder = folder / part
    assert missing == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (ids(document), target)
        for document in DOCUMENTS
        for target in re.findall(
            r"\bmake ([a-z]+(?:-[a-z]+)*)(?=`| *#| [A-Z_]+=|$)", document.read_text(), re.MULTILINE
        )
    }
    assert named, "the documents name make targets"
    assert {(document, target) for document, target in named if target not in targets} == set()


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """(document, command, its words) of each `flyball ...` in the documents, and of each option named with it."""
    for document in DOCUMENTS:
        text = document.read_text()
        lines = [code for code in CODE.findall(FENCE.sub("", text)) if COMMAND.match(code)]
        joined = text.replace("\\\n", " ")
        lines += [line.strip("$ ") for line in joined.splitlines() if COMMAND.match(line.strip("$ "))]
        for line in lines:
            yield ids(document), line, COMMAND.sub("", line.partition(" #")[0], count=1).split()


def test_commands_that_are_named_exist_with_their_options() -> None:
    root = whole_command()
    wrong = []
    for document, line, words in commands():
        command = root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        if hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+", words[0]):
            wrong.append((document, line))
        flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        own = words[: words.index("--")] if "--" in words else words
        given = {word.partition("=")[0] for word in own if re.fullmatch(r"--[a-z0-9-]+(=.*)?", word)}
        if given - flags - {"--help"}:
            wrong.append((document, f"{line}: {sorted(given - flags)}"))
    assert wrong == []


def test_the_glossary_s_names_stand_in_the_code() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    named = {name for name in CODE.findall(FENCE.sub("", text)) if re.fullmatch(r"[A-Z]\w+|[a-z]+(_[a-z]+)+", name)}
    assert len(named) > 20
    source = "\n".join(
        path.read_text()
        for root in SOURCE_ROOTS
        for path in sorted((ROOT / root).rglob("*"))
        if path.suffix in (".py", ".yaml")
    )
    words = set(re.findall(r"\w+", source))
    assert sorted(name for name in named if name not in words) == []


@cache
def all_tests() -> frozenset[str]:
    """The names of all tests, and of those of the state machines that pytest makes tests of."""
    sources = (ROOT / name for name in tracked() if name.startswith("tests/") and name.endswith(".py"))
    return frozenset(name for source in sources for name in re.findall(r"def (test_\w+)\(", source.read_text()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_tests_that_are_named_exist(document: Path) -> None:
    named = {span for span in CODE.findall(document.read_text()) if re.fullmatch(r"test_\w+", span)}
    assert named - all_tests() == set()


def test_every_fault_that_is_survived_names_what_shows_it() -> None:
    text = (ROOT / "docs/power-safety.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 40
    assert [number for number, row in rows if not re.search(r"`test_\w+`", row)] == []


def test_every_rule_of_the_protocol_names_what_shows_it() -> None:
    text = (ROOT / "docs/power-safety.md").read_text()
    begin = text.index("## The protocol")
    rules = re.split(r"^(?=\d+\. \*\*)", text[begin : text.index("\n## ", begin + 1)], flags=re.MULTILINE)[1:]
    assert [int(rule.partition(".")[0]) for rule in rules] == list(range(1, len(rules) + 1))
    assert len(rules) >= 12
    assert [rule.partition(".")[0] for rule in rules if not re.search(r"`test_\w+`", rule)] == []


def test_every_situation_of_a_job_that_does_not_run_names_what_shows_it() -> None:
    """A situation is only as good as the test that shows it."""
    text = (ROOT / "docs/situations.md").read_text()
    tables = re.findall(
        r"^\| situation \| what is said \| and then \| test \|\n\|-+\|-+\|-+\|-+\|\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    assert len(tables) == text.count("| situation |")
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) >= 60
    assert [row for row in rows if not re.search(r"`test_\w+`[^|]* \|$", row)] == []
    situations = [row.split("|")[1].strip() for row in rows]
    assert len(set(situations)) == len(situations)


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_heading_has_something_below_it(document: Path) -> None:
    """Text, or a heading of a deeper level."""
    blocks = [block for block in re.split(r"\n\s*\n", FENCE.sub("code", document.read_text())) if block.strip()]
    levels = [len(match[1]) if (match := re.match(r"(#+) ", block)) and "\n" not in block else 0 for block in blocks]
    empty = [
        block
        for block, level, following in zip(blocks, levels, [*levels[1:], 1], strict=True)
        if level and following and following <= level
    ]
    assert empty == []


def test_every_command_and_make_target_is_in_a_document() -> None:
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    commands = whole_command().commands
    assert [name for name in commands if not re.search(rf"flyball {name}\b", text)] == []
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert [name for name in sorted(targets) if not re.search(rf"make {name}\b(?!-)|`{name}`", text)] == []


def test_every_benchmark_has_its_line() -> None:
    text = (ROOT / "benchmarks/README.md").read_text()
    programs = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()]
    assert [path.name for path in programs if path.stem not in text] == []


def test_every_kind_is_in_the_table_of_the_api_s_page() -> None:
    text = (ROOT / "docs/api.md").read_text()
    schemas = "\n".join(path.read_text() for path in (ROOT / "crds").glob("*.yaml"))
    kinds = set(re.findall(r"^    kind: (\w+)$", schemas, re.MULTILINE))
    assert len(kinds) > 4
    assert [kind for kind in sorted(kinds) if not re.search(rf"^\| \[{kind}\]\(#", text, re.MULTILINE)] == []
