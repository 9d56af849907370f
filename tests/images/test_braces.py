import pytest

from pucache.images.braces import base, expand


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a/{00..02}.tar", ["a/00.tar", "a/01.tar", "a/02.tar"]),
        ("{8..11}.tar", ["8.tar", "9.tar", "10.tar", "11.tar"]),
        ("{0..1}", ["0", "1"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{train,test}/{0..1}.zip", ["train/0.zip", "train/1.zip", "test/0.zip", "test/1.zip"]),
        ("a{,-b}.tar", ["a.tar", "a-b.tar"]),
        *((text, [text]) for text in ("a.tar", "{a}.tar", "{}.tar", "{0..}.tar", "{a..c}.tar", "a{b/c,d}.tar")),
    ],
)
def test_braces_stand_for_paths(pattern, paths):
    assert expand(pattern) == paths


@pytest.mark.parametrize("pattern", ["{0..99999999999999}.tar", "{0..9999}/{0..9999}.tar"])
def test_too_many_files_are_refused_before_they_are_listed(pattern):
    with pytest.raises(ValueError, match="stands for more than 1,000,000 files"):
        expand(pattern)


def test_the_base_ends_at_the_first_braces():
    assert base("a/b-{0..3}/{x,y}.tar") == "a/b-" and base("a/b.tar") == "a/b.tar"
