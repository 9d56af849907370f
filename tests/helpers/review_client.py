"""A client of the review server: what the page does, over real HTTP."""

import http.client
import json
import uuid
from urllib.parse import parse_qs, urlsplit

from helpers.hangs import HANG_SECONDS


class ReviewClient:
    """One tab. `url` is the printed address."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.host, self.port, self.token = parts.hostname, parts.port, parse_qs(parts.query)["token"][0]
        self.origin = f"http://{parts.netloc}"
        self.tab, self.cookie, self.session = uuid.uuid4().hex, "", ""

    def enter(self):
        """Exchange the token, and learn the session."""
        status, headers, _ = self.ask("GET", f"/?token={self.token}")
        assert status == 303, status
        self.cookie = headers["set-cookie"].partition(";")[0]
        self.session = self.get("/api/state")["session"]
        return self

    def ask(self, method, path, body=None, *, bare=False, **headers):
        """Status, headers by lower-case name, and body; a `bare` request has these headers alone."""
        own = {"Cookie": self.cookie} if self.cookie else {}
        if method not in ("GET", "HEAD"):
            own |= {"Origin": self.origin, "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, body, headers if bare else own | headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path):
        status, _, content = self.ask("GET", path)
        assert status == 200, (path, status, content)
        return json.loads(content)

    def post(self, path, expected=200, **body):
        """The JSON of the answer to a POST; one of another status fails."""
        status, _, content = self.ask("POST", path, json.dumps({"session": self.session, "tab": self.tab} | body))
        assert status == expected, (path, status, content)
        return json.loads(content)

    def next(self, count=1, keep=()):
        """Cards to show."""
        return self.post("/api/next", count=count, keep=list(keep))["images"]

    def decide(self, card, choice, request=None, **more):
        """Decide one card."""
        request = request or uuid.uuid4().hex
        decision = {"request": request, "row": card["row"], "choice": choice, "replaces": card["serial"]} | more
        return self.post("/api/decide", decisions=[decision])
