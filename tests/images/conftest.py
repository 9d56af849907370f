import pytest
from helpers.sources import write


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path, memory):
    """A folder as a source would be named, and a function that puts a file there."""
    if request.param == "local":
        return str(tmp_path), lambda name, data: write(tmp_path / name, data)
    if request.param == "s3":
        store = request.getfixturevalue("store")
        return "s3://bucket/root", lambda name, data: store.put(f"root/{name}", data)
    return "memory://root", lambda name, data: memory.pipe(f"/root/{name}", data)
