"""Write the findings of docs/doctor.yml into docs/doctor.md, below its comment, or check them.

python docs/doctor_page.py            # writes the page
python docs/doctor_page.py --check    # exits with 1 if the page is outdated
"""

import sys
from pathlib import Path

import yaml

from xcit_mm.checks.coco import FIXES

DOCS = Path(__file__).resolve().parent
PAGE, TABLE = DOCS / "doctor.md", DOCS / "doctor.yml"
COMMENT = "<!-- The rest of this page: python docs/doctor_page.py -->\n"


def page() -> str:
    """Return docs/doctor.md, with a heading for each code."""
    lines = [PAGE.read_text().partition(COMMENT)[0] + COMMENT]
    reasons = "\n".join(["| annotations | fix |", "|---|---|", *(f"| {why} | {fix} |" for why, fix in FIXES.items())])
    for title, findings in yaml.safe_load(TABLE.read_text()).items():
        lines.append(f"## {title}\n")
        for key, explanation in findings.items():
            code, level = key.split(maxsplit=1)
            lines.append(f"### {code}\n\n**{level}.** {explanation.replace('{reasons}', reasons)}")
    return "\n".join(lines)


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/doctor.md is outdated: python docs/doctor_page.py")


if __name__ == "__main__":
    main()
