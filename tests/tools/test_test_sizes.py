"""benchmarks/benchmark_test_sizes.py: the accuracy at each test size, by a table and a plot."""

import csv

import benchmark_test_sizes
import cv2
import pytest
import torch


@pytest.fixture
def images(tmp_path):
    benchmark_test_sizes.write_data(tmp_path / "data", train=3, val=2)
    return tmp_path / "data"


def test_a_classifier_is_trained_and_scored_at_each_size(images, run_main, tmp_path):
    run_main("train", images / "train", tmp_path / "gray.pth", "--steps", 1, "--batch", 2)
    run_main("evaluate", images / "val", tmp_path / "gray.pth", "--sizes", 64, 32, "--out", tmp_path / "sizes.csv")
    with open(tmp_path / "sizes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["test_size"] for row in rows] == ["32", "64", "224"]
    count = len(list((images / "val").rglob("*.png")))
    for row in rows:
        correct = float(row["accuracy"]) * count / 100
        assert row["images"] == str(count) and abs(correct - round(correct)) < 0.01
    assert float(rows[2]["relative_to_training_size"]) == 0
    assert cv2.imread(str(tmp_path / "sizes.png")).std() > 10


def test_accuracy_counts_the_right_classes(images):
    """A model that always answers the first class is right for its images."""
    paths, labels, classes = benchmark_test_sizes.list_images(images / "val")
    assert classes == ["circle", "square", "star", "triangle"] and set(labels) <= set(range(4))

    class First(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.eye(4)[torch.zeros(len(x), dtype=torch.long)]

    expected = 100 * labels.count(0) / len(labels)
    assert benchmark_test_sizes.accuracy(First(1, 1), paths, labels, 32, 4) == expected


def test_errors_are_one_line(images, run_main, tmp_path):
    for arguments, message in (
        (("evaluate", images / "val", "w.pth", "--out", "a.txt"), "name it .csv"),
        (("train", images / "val" / "circle", "w.pth"), "has no folders of images"),
    ):
        with pytest.raises(SystemExit, match=message) as error:
            run_main(*arguments)
        assert "\n" not in str(error.value)


@pytest.fixture
def run_main(monkeypatch):
    """Runs the script with arguments."""

    def run(*arguments: object) -> None:
        monkeypatch.setattr("sys.argv", ["benchmark_test_sizes.py", *map(str, arguments)])
        assert benchmark_test_sizes.main() == 0

    return run
