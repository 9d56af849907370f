import pytest
from helpers.sources import write

from pucache import open_source
from pucache.errors import SourceError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.LST", "\ufeffb.png\r\n\r\n  \r\na.png"),
        ("m.csv", '\ufefflabel,image\r\n1,"b.png"\r\n,,\r\n0,a.png\r\n'),
        ("m.tsv", "filename\tnote\nb.png\tx,y\na.png\t\n"),
        ("m.csv", "Image Path,n\nb.png,x\na.png,y\n"),
        ("m.csv", "key,path\n,b.png\na.png,a.png\n"),
    ],
)
def test_a_manifest_names_images_by_a_line_or_a_column(tmp_path, name, text):
    for image in ("a.png", "b.png", "unnamed.png"):
        write(tmp_path / image, image.encode())
    source = open_source(write(tmp_path / name, text.encode()))
    assert source.scan().keys == ["a.png", "b.png"]
    assert [source.read(key) for key in ("a.png", "b.png")] == [b"a.png", b"b.png"]


@pytest.mark.parametrize(
    ("header", "names"), [("bild,art", ["a.png"]), ("bild,path", ["k"]), ("file,bild", ["a.png"])], ids=str
)
def test_the_column_of_keys_can_be_named(tmp_path, header, names):
    write(tmp_path / "a.png", b"data")
    row = {"bild,art": "a.png,x", "bild,path": "k,a.png", "file,bild": "a.png,a.png"}[header]
    path = write(tmp_path / "m.csv", f"{header}\n{row}\n".encode())
    source = open_source(path, key_column="Bild")
    assert source.scan().keys == names and source.read(names[0]) == b"data"
    assert open_source(source.name).scan().keys == names, "the name that a cache keeps opens it again"
    with pytest.raises(SourceError, match="expected one called 'x'"):
        open_source(path, key_column="x").scan()


def test_a_manifest_in_an_old_encoding(tmp_path, caplog):
    write(tmp_path / "é.png", b"data")
    path = write(tmp_path / "m.txt", "é.png\n".encode("cp1252"))
    assert open_source(path).scan().keys == ["é.png"] and "is read as cp1252" in caplog.text
    write(tmp_path / "犬.png", b"data")
    source = open_source(write(tmp_path / "m.csv", "path\n犬.png\n".encode("shift_jis")), encoding="shift_jis")
    assert source.scan().keys == ["犬.png"] and open_source(source.name).scan().keys == ["犬.png"]


def test_paths_are_relative_to_the_manifest_absolute_or_urls(tmp_path, memory):
    memory.pipe("/far/c.png", b"far")
    absolute = write(tmp_path / "elsewhere/b.png", b"absolute")
    write(tmp_path / "lists/sub/a.png", b"below")
    write(tmp_path / "up.png", b"above")
    lines = {"sub/a.png": b"below", "../up.png": b"above", str(absolute): b"absolute", "memory://far/c.png": b"far"}
    source = open_source(write(tmp_path / "lists/m.txt", "\n".join(lines).encode()))
    assert {key: source.read(key) for key in source.scan().keys} == lines


def test_one_row_stops_no_other(tmp_path, write, caplog, monkeypatch, memory):
    """Named again, missing, without a path, of a store without its package, of a key that is taken or too long."""
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)  # which no test imports
    long = "é" * 2048
    rows = ["a.png,a", "a.png,a", "b.png,b", "c.png,b", "gs://x/y.png,s", "x\\gone.png,g", ",h", 'c.png,"c, d"']
    rows += [f"a.png,{long}", f"a.png,{long}x", "a.png,nul\0", "nosuch://u:pw@h/a.png,p", "memory://no/d.png,m"]
    rows += [f"{'f' * 5000},f", "c\0.png,"]
    for name in "abc":
        write(f"{name}.png", name)
    source = open_source(write("m.csv", "\n".join(["path,key", *rows])))
    listing = source.scan()
    assert listing.keys == ["a", "b", "c, d", long] and source.read("c, d") == b"c" and listing.unanswered == {"s"}
    assert "names 1 images again; each is taken once" in caplog.text
    assert "b.png has this key too" in listing.failures.pop("b (c.png)") and "gcsfs" in listing.failures.pop("s")
    for key in ("m", "c\\x00.png"):
        assert listing.failures.pop(key).startswith("cannot be read: ")
    assert listing.failures == {
        "f": "cannot be read: File name too long",
        "g": "cannot be read: No such file or directory; separate its folders by slashes",
        "nul\\x00": "key contains a NUL character",
        "p": "cannot be read: Protocol not known: nosuch",
        long: "key of 4097 bytes; at most 4096 are kept",
    }


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("m.csv", b"key,path\nk,a.png\nk,b.png\n", "names many files by few keys, such as 'k'; keys must be unique"),
        ("m.txt", b"sftp://u:pw@h/a.png\n", "names sftp://h/a.png with its password, which .*; add a 'key' column"),
        ("m.csv", b"picture,label\na.png,1\n", "has columns picture, label; expected one called 'path'"),
        ("m.csv", b"path\n", "names no image"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(place, name, data, reason):
    where, put = place
    put(name, data)
    with pytest.raises(SourceError, match=f"{name} {reason}"):
        open_source(f"{where}/{name}").scan()
