"""Write measurements of `make bench` and tables of models into README.md and pages of docs/.

python docs/readme_tables.py            # replaces blocks between comments, draws docs/whole.png
python docs/readme_tables.py --check    # changes nothing, exits with 1 if a block is outdated
"""

import sys
from pathlib import Path

import benchmark_tables as measured
import model_tables as models
from whole_plot import draw_whole

ROOT = Path(__file__).resolve().parents[1]


def with_block(page: str, name: str, block: str) -> str:
    """Return the text of a page with `block` between the two comments of that name.

    Raises:
        ValueError: If the page does not have the two comments.
    """
    begin = f"<!-- {name}: written by docs/readme_tables.py -->\n"
    end = f"\n<!-- end of {name} -->"
    above, begun, rest = page.partition(begin)
    _, ended, below = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"no block {name!r} between {begin.strip()} and {end.strip()}")
    return above + begin + block + end + below


def read_blocks() -> dict[str, dict[str, str]]:
    """Return the blocks of each page, by the names in its comments."""
    zoo = models.read_metafiles(ROOT)
    return {
        "README.md": dict(
            raster=measured.raster_sentence(),
            models=models.short_table(zoo),
            speed=models.speed_table(zoo),
        ),
        "docs/index.md": dict(command=measured.commands_table(["semantic_fpn"])),
        "docs/large-images.md": dict(
            command=measured.commands_table(list(measured.COMMANDS)),
            windows=measured.windows_table(),
            processes=measured.processes_sentence(),
        ),
        "docs/advanced-training.md": dict(steps=measured.steps_table()),
        "docs/model-zoo.md": dict(
            published=models.published_table(zoo), measured=models.demos_table(zoo["demo"])
        ),
        "docs/plain-transformers.md": dict(sizes=measured.sizes_table()),
        "docs/benchmark.md": dict(
            origins=measured.origins_table(),
            backbones=measured.backbones_table(),
            training=measured.training_table(),
            whole=measured.whole_table(),
            trained=measured.trained_table(),
            padding=measured.padding_table(),
            busy=measured.busy_table(),
        ),
    }


def render() -> dict[Path, str]:
    """Return the texts of README.md and of pages of docs/ with current blocks."""
    pages = {}
    for name, blocks in read_blocks().items():
        text = (ROOT / name).read_text()
        for block_name, block in blocks.items():
            text = with_block(text, block_name, block)
        pages[ROOT / name] = text
    return pages


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    pages = render()
    if sys.argv[1:]:
        for path, page in pages.items():
            if page != path.read_text():
                outdated = f"the blocks in {path.relative_to(ROOT)} are outdated"
                sys.exit(f"{outdated}: python docs/readme_tables.py")
        return
    for path, page in pages.items():
        path.write_text(page)
    draw_whole(ROOT / "docs" / "whole.png")


if __name__ == "__main__":
    main()
