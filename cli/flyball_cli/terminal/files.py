"""Files that commands read and write: what is wrong with one is said in one line, and before anything is computed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyball_cli.terminal.endings import refuse


def read_text(path: Path) -> str:
    """A text file as people and spreadsheets write them: UTF-8, with or without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8: wanted a text file") from error


def read_json(path: Path) -> Any:
    """What a JSON file has. Raises ValueError that names the place where it is none."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error


def check_output_file(option: str, path: Path | None) -> None:
    """Refuse a file that could not be written once the work is done."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        refuse(f"{option} {path}: that is a folder; wanted the name of a file in it")
    if not folder.is_dir():
        refuse(f"{option} {path}: there is no folder {folder}; make it first (mkdir -p {folder})")
    if not (os.access(path, os.W_OK) if path.exists() else _takes_files(folder)):
        refuse(f"{option} {path}: that may not be written; wanted a place that you may write to")


def check_picture(option: str, path: Path | None, kinds: Sequence[str] = (".png",)) -> None:
    """Refuse a picture that could not be written, or whose name promises another kind of file than is drawn."""
    check_output_file(option, path)
    if path is not None and path.suffix.lower() not in kinds:
        wanted = " or ".join(([", ".join(kinds[:-1])] if kinds[1:] else []) + [kinds[-1]])
        refuse(
            f"{option} {path}: {path.suffix or 'no ending'} is no kind of picture that it draws; wanted a name in {wanted}"
        )


def check_output_folder(option: str, path: Path | None) -> None:
    """Refuse a folder that could not be made or written once the work is done; it is made then, not now."""
    if path is None:
        return
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        refuse(f"{option} {path}: {there} is a file; wanted a folder, or the name of one to make")
    if not _takes_files(there):
        refuse(f"{option} {path}: {there} may not be written; wanted a place that you may write to")


def _takes_files(folder: Path) -> bool:
    """Whether something can be made in the folder: tried, for its mode tells root nothing of /proc or of a full disk."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".flyball-"):
            return True
    except OSError:
        return False
