"""An S3 server on this machine, and before it a relay that fails where it is told to."""

import contextlib
import http.client
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import s3fs

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
ANSWER_SECONDS = 300  # s3fs gives a connection 5 seconds and an answer 15, which a busy machine may exceed
ANSWERS = {
    "denied": (403, "AccessDenied", "Access Denied"),
    "busy": (503, "SlowDown", "Please reduce your rate."),
    "gone": (410, "Gone", "Gone"),
}


@contextlib.contextmanager
def object_store():
    """Yield a `Store` whose server runs as long."""
    s3fs.S3FileSystem.connect_timeout = s3fs.S3FileSystem.read_timeout = ANSWER_SECONDS
    command = [sys.executable, "-W", "ignore", "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as server:  # which ends when its input does
        relay = Relay(int(server.stdout.readline()))
        thread = threading.Thread(target=relay.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield Store(relay)
        finally:
            relay.shutdown()
            thread.join()
            relay.server_close()
            server.stdin.close()


class Store:
    """One bucket called `bucket`, and how to reach it.

    Attributes
    ----------
    relay : Relay
        What `environ` leads to.
    files : S3FileSystem
        Reaches the server itself, past the relay.
    """

    _met = None

    def __init__(self, relay):
        self.relay = relay
        self._home = f"http://127.0.0.1:{relay.upstream}"
        login = {"key": "test", "secret": "test", "client_kwargs": {"region_name": "us-east-1"}}
        self.files = s3fs.S3FileSystem(endpoint_url=self._home, use_listings_cache=False, **login)

    @property
    def environ(self):
        """Variables by which fsspec's S3 finds it, and nothing else."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.relay.server_port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1",
        }

    def connect(self, monkeypatch):
        """Empty it, and let fsspec find it for the length of a test."""
        urllib.request.urlopen(urllib.request.Request(f"{self._home}/moto-api/reset", method="POST")).close()
        self.relay.faults.clear()
        self.relay.asked.clear()
        self.relay.sent.clear()
        self.files.call_s3("create_bucket", Bucket="bucket")
        for name, value in self.environ.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        if Store._met is not self:
            s3fs.S3FileSystem.clear_instance_cache()  # of what has met another one
            Store._met = self
        return self

    def forget(self):
        """Let fsspec look at the environment anew."""
        s3fs.S3FileSystem.clear_instance_cache()

    def put(self, key, data, **headers):
        """Put an object, which may be read without credentials too."""
        self.files.pipe_file(f"bucket/{key}", data, ACL="public-read", **headers)

    def get(self, key):
        return self.files.cat_file(f"bucket/{key}")

    def keys(self):
        """Names of everything in the bucket."""
        return sorted(path.removeprefix("bucket/") for path in self.files.find("bucket"))


class Relay(ThreadingHTTPServer):
    """Hands requests on, but those that are to fail.

    Attributes
    ----------
    asked : Counter
        How often each (method, key) was asked for.
    sent : Counter
        Bytes of the answers to GET, by key.
    faults : dict
        (method, key) to the kind of fault and how many are left.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.asked = Counter()
        self.sent = Counter()
        self.faults = {}
        self._lock = threading.Lock()

    def fail(self, method, key, kind="cut", times=10**6):
        """Let the next requests fail: "cut" within the body, "short" by a body shorter than was said, or in `ANSWERS`.

        The listing of a bucket is the GET of the key "".
        """
        self.faults[method, key] = [kind, times]

    def fault(self, method, key):
        """The fault that is due now, if any."""
        with self._lock:
            self.asked[method, key] += 1
            kind, left = self.faults.get((method, key), (None, 0))
            if left:
                self.faults[method, key][1] -= 1
            return kind if left else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is written in two pieces, the second of which would wait for 40 ms

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        key = unquote(urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")
        fault = self.server.fault(self.command, key)
        length = int(self.headers.get("Content-Length", 0))
        if fault == "cut" and length:
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault in ANSWERS:
            status, code, text = ANSWERS[fault]
            said = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
            self._answer(status, [("Content-Type", "application/xml"), ("Content-Length", len(said))], said)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body, dict(self.headers))
            response = upstream.getresponse()
            data = response.read()
            left_out = {"connection", "transfer-encoding", "content-length"}
            headers = [(name, value) for name, value in response.getheaders() if name.lower() not in left_out]
            size = response.headers.get("Content-Length", 0) if self.command == "HEAD" else len(data)
        if self.command == "GET":
            self.server.sent[key] += len(data)
        if fault == "short":
            data = data[: len(data) // 2]
            size = len(data)
        elif fault == "cut":
            data = data[: len(data) // 2]
            self.close_connection = True
        self._answer(response.status, [*headers, ("Content-Length", size)], data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD

    def _answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
