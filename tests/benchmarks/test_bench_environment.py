"""What a page says of the state of the code."""

import subprocess

from benchmarks.common import environment


def git(folder, *command):
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *name, *command], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_the_last_one_that_changed_code(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "HERE", tmp_path)
    assert environment.commit() == ""
    git(tmp_path, "init")
    for folder in ("docs", "tests", "code"):
        (tmp_path / folder).mkdir()
    named = []
    for path in ("code/a.py", "docs/page.md", "tests/test_a.py", "README.md", "code/b.py"):
        (tmp_path / path).write_text("1")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", path)
        named.append(environment.commit())
    assert named[0] and named[1:4] == named[:1] * 3 and named[4] != named[0]
    (tmp_path / "docs" / "page.md").write_text("2")
    assert environment.commit() == named[4]
    (tmp_path / "code" / "a.py").write_text("2")
    assert environment.commit() == f"{named[4]}-dirty"
