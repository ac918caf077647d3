"""docs/doctor.yml explains every code of the doctor, and docs/doctor.md shows the explanations."""

import re

import doctor_page
from paths import ROOT

SOURCE = "".join(
    path.read_text() for path in [*(ROOT / "xcit_mm" / "checks").glob("*.py"), ROOT / "tools" / "doctor.py"]
)
EXPLAINED = re.findall(r"^  (D\d{3}) (FAIL|note|FAIL or note): \|\n    \S", doctor_page.TABLE.read_text(), re.MULTILINE)


def test_every_code_is_explained_once_and_used():
    codes = [code for code, _ in EXPLAINED]
    assert codes == sorted(set(codes))
    assert set(codes) == set(re.findall(r"\bD\d{3}\b", SOURCE))


def test_explained_levels_are_those_in_the_code():
    used: dict[str, set[str]] = {}
    for level, code in re.findall(r'\b(fail|note)\(\s*"(D\d{3})"', SOURCE):
        used.setdefault(code, set()).add(level.replace("fail", "FAIL"))
    assert len(used) > 50
    explained = dict(EXPLAINED)
    assert {code: " or ".join(sorted(levels)) for code, levels in used.items()} == {
        code: explained[code] for code in used
    }


def test_the_page_shows_the_explanations():
    assert doctor_page.page() == doctor_page.PAGE.read_text()
