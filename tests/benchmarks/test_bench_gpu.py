"""The script for a GPU, tried on the CPU: each check gives figures, and what is known is not measured again."""

import json

import pytest

from benchmarks import gpu

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def lines(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_every_check_gives_figures_on_the_cpu(tmp_path):
    names = [name for name in gpu.CHECKS if name != "tests"]  # which run anyway
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick", "--checks", *names]) == 0
    found = lines(tmp_path)
    assert [line["check"] for line in found] == names
    assert all(len(line) > 3 for line in found)
    differences = [line["difference, sd"] for line in found if "difference, sd" in line]
    assert differences and max(differences) < 1e-5
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"| {name} |" in page for name in names)


def test_a_check_that_fails_is_recorded_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    def fails(bench):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "CHECKS", {"first": fails, "second": lambda bench: {"figure": 1.5}})
    command = [str(tmp_path), "--device", "cpu"]
    assert gpu.main(command) == 1
    assert [line.get("error", line.get("figure")) for line in lines(tmp_path)] == ["RuntimeError: no such kernel", 1.5]
    gpu.main(command)
    assert len(lines(tmp_path)) == 2
