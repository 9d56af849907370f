import subprocess
import sys

from helpers.planted import planted, write_cache

HEAVY = {"torch", "torchvision", "timm", "faiss", "sklearn", "scipy", "matplotlib", "jinja2", "PIL", "ray", "fsspec"}


def test_a_ranking_by_similarity_imports_nothing_heavy(tmp_path):
    X, s, _ = planted(60, labelled=10)
    cache = write_cache(tmp_path / "cache.h5", X)
    (tmp_path / "found.txt").write_text("".join(f"{key}\n" for key, label in zip(cache.keys, s, strict=True) if label))
    script = (
        "import sys\n"
        "from pucache.cli.main import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    command = ["retrieve-positives", cache.files[0].path, "--positives", tmp_path / "found.txt"]
    command += ["--out", tmp_path / "ranked.csv"]
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, command)], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(ended.stdout.splitlines()[-1].split())
    assert (tmp_path / "ranked.csv").read_text().count("\n") == 51
