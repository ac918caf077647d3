"""Check the kB of code in each part of the repository: python tests/sizes.py.

Docstrings, comments and blank lines do not count. See CONTRIBUTING.md, "Subpackages".
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
# In whole kB of 1000 bytes. The part "." is xcit_mm without its subpackages.
SIZES = {
    "xcit_mm/.": 6,
    "xcit_mm/checks": 32,
    "xcit_mm/commands": 19,
    "xcit_mm/datasets": 19,
    "xcit_mm/deployment": 34,
    "xcit_mm/launch": 31,
    "xcit_mm/models": 101,
    "xcit_mm/ops": 16,
    "xcit_mm/prediction": 78,
    "xcit_mm/rasters": 56,
    "xcit_mm/training": 21,
    "xcit_mm/utils": 32,
    "xcit_mm/weights": 36,
    "tests": 592,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_size(source: str) -> int:
    """Return the bytes of the lines of a module that hold code."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            for row in range(docstring.lineno, docstring.end_lineno + 1):
                lines[row - 1] = ""
    return sum(len(line.encode()) + 1 for line in lines if line.strip())


def size_of(part: str) -> int:
    """Return the whole kB of code in the Python modules of a part."""
    folder = ROOT / part
    paths = folder.glob("*.py") if part.endswith(".") else folder.rglob("*.py")
    return round(sum(code_size(path.read_text("utf-8")) for path in paths) / 1000)


def main() -> None:
    folders = {f"xcit_mm/{path.parent.name}" for path in ROOT.glob("xcit_mm/*/__init__.py")}
    problems = [f"{part} has no size: give it one" for part in sorted(folders - SIZES.keys())]
    for part, limit in SIZES.items():
        size = size_of(part)
        if size > limit:
            problems.append(
                f"{part} has {size} of {limit} kB: a full part gives something up first"
            )
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
