"""The script for a GPU, tried on the CPU: each check gives figures."""

import json

import pytest

from benchmarks import gpu

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_every_check_gives_figures_on_the_cpu(tmp_path):
    # the tests run anyway; compiling takes minutes here
    names = [name for name in gpu.CHECKS if name != "tests" and "compiled" not in name and "graphs" not in name]
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick", "--checks", *names]) == 0
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["check"] for line in found] == names
    assert all(len(line) > 3 for line in found)
    differences = [line["difference, sd"] for line in found if "difference, sd" in line]
    assert differences and max(differences) < 1e-5
    assert not [line for line in found if "error" in line]
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"| {name} |" in page for name in names)
