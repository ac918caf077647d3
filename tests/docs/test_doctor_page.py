"""docs/doctor.md explains all that the doctor can find, and nothing else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

from xcit_mm.checks.coco import FIXES

CHECKS = ROOT / "xcit_mm" / "checks"
PAGE = (ROOT / "docs" / "doctor.md").read_text()


def template(node: ast.expr, function: ast.AST) -> str:
    """What a finding says, with `…` for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(template(part, function) for part in parts)
        case ast.BinOp(left=left, right=right):
            return template(left, function) + template(right, function)
        case ast.Name(id=name):
            for statement in ast.walk(function):
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
                    return template(statement.value, function)
    return "…"


def said(path: Path, *names: str, inside: str = "") -> Iterator[str]:
    """What the calls of these names in a file, or in one function, say first, less the data set they begin with."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or inside not in ("", function.name):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            # `(fail if SURE else note)(TEXT, FIX)` is a call of either.
            called = call.func.body if isinstance(call.func, ast.IfExp) else call.func
            if isinstance(called, ast.Name) and called.id in names:
                text = re.sub("…( ?…)*", "…", template(call.args[0], function)).removeprefix("…: ")
                if text != "…":  # an exception, told by its own words
                    yield text


def all_said() -> set[str]:
    found = set(said(ROOT / "tools" / "doctor.py", "Note", "ImportError", "OSError"))  # its checks raise what is wrong
    found |= set(said(CHECKS / "coco_json.py", "ValueError")) | set(
        said(ROOT / "xcit_mm" / "utils" / "configs.py", "ValueError", inside="read_config")
    )
    for path in CHECKS.glob("*.py"):
        found |= set(said(path, "fail", "note"))
    return found


def test_every_finding_is_explained():
    explained = re.findall(r"^- `(.+)`\\\n  \*\*(?:FAIL|note|FAIL or note)\.\*\* \S", PAGE, re.MULTILINE)
    assert len(explained) == len(set(explained)) > 50
    assert set(explained) == all_said()


def test_every_reason_why_annotations_are_dropped_is_explained():
    assert [why for why in FIXES if f"| {why} |" not in PAGE] == []


def test_every_fix_of_an_exception_is_explained():
    source = "".join((CHECKS / name).read_text() for name in ("doctor.py", "start.py"))
    fixes = set(re.findall(r'"(correct [\w. ]+)"', source))
    assert len(fixes) > 6
    assert [fix for fix in fixes if f"`{fix}`" not in PAGE] == []
