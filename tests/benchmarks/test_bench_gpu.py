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
    assert found[0]["environment"] in page and all(f"| {name} |" in page for name in names[1:])


def test_a_group_that_takes_too_long_is_an_error_and_the_next_one_runs(tmp_path, monkeypatch):
    machine, libraries = ({name: gpu.CHECKS[name]} for name in ("machine", "faiss beside torch"))
    monkeypatch.setattr(gpu, "GROUPS", [(0.01, machine), (120, libraries)])
    assert gpu.main([str(tmp_path), "--device", "cpu", "--quick"]) == 1
    first, second = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert first["error"] == "RuntimeError: not finished within 0.01 s, ended with -9"
    assert second["check"] == "faiss beside torch" and "error" not in second
