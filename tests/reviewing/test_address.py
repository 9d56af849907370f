import os
import stat

import pytest

from pucache.errors import OutputError
from pucache.reviewing.address import (
    ADDRESS,
    ServerAddress,
    keep_address,
    kept_address,
    listening_socket,
    printed_url,
)


def test_the_address_is_kept_for_its_owner_alone(tmp_path):
    address = ServerAddress(8321, "x" * 43)
    keep_address(tmp_path, address)
    assert stat.S_IMODE((tmp_path / ADDRESS).stat().st_mode) == 0o600
    assert kept_address(tmp_path) == address and os.listdir(tmp_path) == [ADDRESS]
    (tmp_path / ADDRESS).chmod(0o640)
    assert kept_address(tmp_path) is None, "others may have read it"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"port": 1}', '{"port": 0, "token": "%s"}', '{"port": "1", "token": "%s"}',
             '{"port": 70000, "token": "%s"}', '{"port": 1, "token": ""}', '{"port": 1, "token": 5}', "\xff"]
)  # fmt: skip
def test_a_damaged_address_is_replaced(tmp_path, text):
    path = tmp_path / ADDRESS
    path.write_bytes((text.replace("%s", "x" * 43)).encode("latin-1"))
    path.chmod(0o600)
    assert kept_address(tmp_path) is None


def test_every_port_in_use_is_one_line(monkeypatch):
    monkeypatch.setattr("pucache.reviewing.address.PORTS", 1)
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(OutputError, match="all in use; name a free one"):
        listening_socket("127.0.0.1", taken.getsockname()[1])


def test_printed_addresses_can_be_opened():
    assert printed_url("127.0.0.1", 1, "t") == "http://127.0.0.1:1/?token=t"
    assert printed_url("::1", 1, "t") == "http://[::1]:1/?token=t"
    assert printed_url("0.0.0.0", 1, "t") == "http://127.0.0.1:1/?token=t"
