import asyncio
import socket

from starlette.responses import PlainTextResponse

from pucache.reviewing import access as module
from pucache.reviewing.access import HEADERS, Access, is_own_host, own_origins, with_headers

TOKEN = "t" * 43
JSON = (b"content-type", b"application/json")
OWN = (b"origin", b"http://127.0.0.1:8321")


def guarded(token=TOKEN):
    return Access(PlainTextResponse("inner"), token, "127.0.0.1")


def ask(access, method="GET", path="/", *, query="", lines=(), host="127.0.0.1:8321"):
    """Status, headers as a list, and body of a request to the guard itself."""
    headers = [*([(b"host", host.encode())] if host is not None else []), *lines]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode("latin-1")}
    scope |= {"query_string": query.encode(), "headers": headers}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(access(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], [(name.decode(), value.decode()) for name, value in sent[0]["headers"]], body


def cookie(access):
    return (b"cookie", f"{access.cookie_name}={access.cookie}".encode())


# --- token and cookie --------------------------------------------------------------------------


def test_the_printed_address_is_exchanged_for_a_cookie_and_a_redirect_by_a_get_of_the_page_alone():
    access = guarded()
    status, headers, body = ask(access, query=f"token={TOKEN}")
    assert status == 303 and ("location", "/") in headers and body == b""
    (line,) = [value for name, value in headers if name == "set-cookie"]
    assert line.startswith(f"{access.cookie_name}={access.cookie};")
    assert {part.strip().lower() for part in line.split(";")[1:]} == {"httponly", "path=/", "samesite=strict"}
    assert TOKEN not in line, "whoever sees the cookie does not know the token"
    assert ask(access, lines=[cookie(access)])[0] == 200
    for method, path in (("POST", "/"), ("HEAD", "/"), ("GET", "/api/state")):
        assert ask(access, method, path, query=f"token={TOKEN}", lines=[OWN, JSON])[0] == 403


def test_any_other_token_is_refused_and_the_page_says_what_to_open():
    wrong = ["", "x", f"{TOKEN}x", TOKEN[:-1], f"{TOKEN}&token=x", "%ff%fe", "%E2%98%83", "x" * 5000, "%00"]
    for query in ("token", "a=b", "&" * 3000, *(f"token={value}" for value in wrong)):
        status, headers, body = ask(guarded(), query=query)
        assert status == 403 and b"that pucache review printed" in body
        assert not [value for name, value in headers if name == "set-cookie"]


def test_another_cookie_is_refused_and_those_of_other_programs_do_not_matter():
    access, other = guarded(), guarded("u" * 43)
    name = access.cookie_name
    for value in (f"{name}=", f"{name}=x", f"{name}=name", f"{name}={access.cookie}x", access.cookie):
        assert ask(access, lines=[(b"cookie", value.encode())])[0] == 403
    assert name != other.cookie_name and ask(access, lines=[cookie(other)])[0] == 403
    odd = b'a="b; b; =c; {"json": 1}; pucache_00000000=x; ' + cookie(access)[1] + b"; z=\xff"
    assert ask(access, lines=[(b"cookie", odd)])[0] == 200
    assert ask(access, lines=[(b"cookie", b"a=b"), cookie(access)])[0] == 200


def test_secrets_are_compared_in_constant_time(monkeypatch):
    access, compared = guarded(), []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda *both: compared.append(both))
    ask(access, query="token=wrong")
    ask(access, lines=[(b"cookie", f"{access.cookie_name}=wrong".encode())])
    assert compared == [(b"wrong", TOKEN.encode()), (b"wrong", access.cookie.encode())]


# --- Host --------------------------------------------------------------------------------------

GOOD = (
    "127.0.0.1 127.0.0.1:1 127.0.0.1:65535 127.5.6.7:80 localhost LocalHost:8888 localhost:8321 [::1] [::1]:8321 "
    "[0:0:0:0:0:0:0:1]:9"
).split()
BAD = (
    "evil.example evil.example:8321 localhost.evil.example 127.0.0.1.evil.example 10.0.0.1:8321 0.0.0.0:8321 "
    "[::]:80 ::1 ::1:8321 [::1 [127.0.0.1]:8321 127.1 2130706433 0x7f.1 127.0.0.1:65536 127.0.0.1:-1 127.0.0.1: "
    "localhost:x localhost: user@127.0.0.1 127.0.0.1/x 127.0.0.1,localhost localhost#a [fe80::1]:80 localhost. ٣"
).split()


def test_a_loopback_host_is_taken_at_any_port_and_any_other_refused_even_with_the_cookie():
    access = guarded()
    for host in GOOD:
        assert ask(access, host=host, lines=[cookie(access)])[0] == 200, host
    for host in (*BAD, "", "local host"):
        assert ask(access, host=host, lines=[cookie(access)])[0] == 403, host
        assert ask(access, host=host, query=f"token={TOKEN}")[0] == 403, host
    line = (b"host", b"localhost")
    for lines in ([], [line, line], [line, (b"Host", b"evil.example")]):
        assert ask(access, host=None, lines=[*lines, cookie(access)])[0] == 403, "exactly one"


def test_another_address_takes_its_own_name_and_every_one_takes_all_addresses():
    assert is_own_host("10.1.2.3:80", "10.1.2.3") and not is_own_host("10.1.2.4", "10.1.2.3")
    assert is_own_host("127.0.0.1", "10.1.2.3") and is_own_host("Box.lan:1", "box.lan")
    assert is_own_host("10.1.2.4:80", "0.0.0.0") and is_own_host("[fd00::1]:80", "::")
    assert is_own_host(socket.gethostname(), "0.0.0.0") and not is_own_host("evil.example", "0.0.0.0")
    assert not is_own_host(f"{socket.gethostname()}x", "127.0.0.1")


# --- Origin, methods, paths, headers -----------------------------------------------------------


OTHER_ORIGINS = [
    *("null", "", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:8322", "https://127.0.0.1:8321"),
    *("http://localhost:8321", "http://127.0.0.1:8321/", "http://127.0.0.1:8321 http://evil.example"),
]


def test_whatever_may_change_something_needs_the_origin_of_this_page_through_a_tunnel_too():
    access = guarded()
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X"):
        for origins in ([], [OWN, OWN], *([(b"origin", origin.encode())] for origin in OTHER_ORIGINS)):
            assert ask(access, method, "/api/decide", lines=[cookie(access), JSON, *origins])[0] == 403
    for host in ("127.0.0.1:8321", "localhost:7000", "[::1]:8321", "localhost", "LOCALHOST:80"):
        for origin in own_origins(host):
            lines = [cookie(access), JSON, (b"origin", origin.encode())]
            assert ask(access, "POST", "/x", host=host, lines=lines)[0] == 200
    assert "http://localhost" in own_origins("localhost") and own_origins("localhost:1") == ["http://localhost:1"]


def test_a_post_is_json():
    access = guarded()
    kinds = ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"]
    for kind, status in {**dict.fromkeys(kinds, 415), "application/json; charset=UTF-8": 200}.items():
        lines = [cookie(access), OWN, (b"content-type", kind.encode())]
        assert ask(access, "POST", "/x", lines=lines)[0] == status, kind
    assert ask(access, "POST", "/x", lines=[cookie(access), OWN])[0] == 415


def test_an_encoded_or_odd_path_is_nothing():
    access = guarded()
    odd = ["/%2e%2e/x", "/api/image/%2e%2e", "//x\\y", "/a b", "http://127.0.0.1:8321/", "*", "", "/\xd9\xa3"]
    for path in (*odd, "/a;b", "/a%2fb"):
        status, _, body = ask(access, path=path, lines=[cookie(access)])
        assert status == 404 and body == b'{"error":"there is nothing at this address"}'


def test_every_answer_has_the_headers_once():
    access = guarded()
    for path, host in (("/", "localhost:1"), ("/x", "evil.example"), ("/%2e", "localhost:1")):
        for lines in ([], [cookie(access)]):
            _, headers, _ = ask(access, path=path, host=host, lines=lines)
            values = dict(headers)
            assert len(values) == len(headers) and values | HEADERS == values
            assert not [name for name in values if name.startswith("access-control")], "no CORS"
    assert HEADERS["x-content-type-options"] == "nosniff" and HEADERS["referrer-policy"] == "no-referrer"
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'self'; ") and "unsafe" not in policy and "*" not in policy
    lines = with_headers([(b"Referrer-Policy", b"unsafe-url"), (b"x", b"y")])
    assert [value for name, value in lines if name.lower() == b"referrer-policy"] == [b"no-referrer"]
    assert (b"x", b"y") in lines


def test_a_web_socket_is_closed_at_once():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(guarded()({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
