"""How well the models predict: the figures and pictures of docs/models.md.

    python -m flyball_studies.models --data ../shared/data --document docs/models.md --images docs/images

Each section is a table that goes between its two markers in the document. Sections whose measurements are absent stay as
they are. Same data, same figures: nothing is drawn without a seed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from flyball_studies.models import against_oracle as oracle
from flyball_studies.models import measured

Section = Callable[[Path, Path], str]

SECTIONS: dict[str, Section] = {
    "leave-one-out": measured.leave_one_out,
    "stage-profile": measured.stage_profiles,
    "batch-law": measured.batch_law,
    "table-2": oracle.table_2,
    "observations": oracle.observations,
    "quantiles": oracle.quantiles,
    "extrapolation": oracle.extrapolation,
    "refits": oracle.refits,
}


def written_into(document: str, name: str, table: str) -> str:
    """The document with a section's table between its markers; raises ValueError where it has no such markers."""
    pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
    if not pattern.search(document):
        raise ValueError(f"the document has no place for {name!r}: <!-- begin {name} --> and <!-- end {name} -->")
    return pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", document)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the folder of the measurements")
    parser.add_argument("--document", type=Path, help="write the tables into this file, between their markers")
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="the folder for the PNGs")
    parser.add_argument("--only", choices=sorted(SECTIONS), action="append", help="only this section (repeatable)")
    options = parser.parse_args()
    options.images.mkdir(parents=True, exist_ok=True)
    for name, section in SECTIONS.items():
        if options.only and name not in options.only:
            continue
        try:
            table = section(options.data, options.images)
        except FileNotFoundError as error:
            print(f"{name}: {error.filename} is not here; left as it is", file=sys.stderr)
            continue
        print(f"## {name}\n{table}\n", flush=True)
        if options.document is not None:
            text = options.document.read_text(encoding="utf-8")
            options.document.write_text(written_into(text, name, table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
