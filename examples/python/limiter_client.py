"""Asks limiterd whether a request may go on. Standard library only.

    limiter = Limiter("unix:/run/limiter/requests-http.sock")
    decision = limiter.check(client="203.0.113.9", method="POST", uri="/v1/login", account="ada")
    if not decision.allowed:
        return Response(429, decision.headers)
    if login_succeeded:
        limiter.report(client="203.0.113.9", method="POST", uri="/v1/login", account="ada", result="success")

One `Limiter` serves one thread: it keeps one connection.
"""

import http.client
import socket
from dataclasses import dataclass, field

# What a refused client should see.
PASSED_ON = (
    "Retry-After",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "Cache-Control",
)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("limiter", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Decision:
    allowed: bool
    # within, over, never, denied, store or unmatched; "unreachable" when limiterd did not answer.
    reason: str
    headers: dict = field(default_factory=dict)

    @property
    def retry_after(self):
        """Seconds until there is room, or None when waiting does not help."""
        value = self.headers.get("Retry-After")
        return None if value is None else int(value)


class Limiter:
    def __init__(self, address, timeout=0.05, allow_when_unreachable=False, key_header="X-Api-Key", token=None):
        """`address`: "unix:/path" or "host:port". `allow_when_unreachable`: fail open or closed."""
        if address.startswith("unix:"):
            self._connection = _UnixConnection(address.removeprefix("unix:"), timeout)
        else:
            self._connection = http.client.HTTPConnection(address, timeout=timeout)
        self._allow_when_unreachable = allow_when_unreachable
        self._key_header = key_header
        self._token = token

    def check(self, client, method, uri, api_key=None, account=None, user=None, plan=None, cost=None, wait=False):
        """Decides about one request and charges it. `wait`: limiterd answers when it is the request's turn."""
        headers = self._headers(client, method, uri, api_key, account, user, plan, cost)
        try:
            response = self._ask("GET", "/v1/check?wait=1" if wait else "/v1/check", headers)
        except (OSError, http.client.HTTPException):
            return Decision(self._allow_when_unreachable, "unreachable")
        if response.status not in (204, 429):
            raise ValueError(f"limiterd answered {response.status}")
        passed_on = {name: response.getheader(name) for name in PASSED_ON if response.getheader(name)}
        return Decision(response.status == 204, response.getheader("Limiter-Reason"), passed_on)

    def report(self, client, method, uri, api_key=None, account=None, user=None, plan=None, cost=None,
               actual_cost=None, result=None):
        """Settles a check with the same arguments: `actual_cost`, or `result` "success" or "failure".

        True when it was settled. False: the charge stays as it was, or limiterd went away before it said.
        """
        headers = self._headers(client, method, uri, api_key, account, user, plan, cost)
        if actual_cost is not None:
            headers["Limiter-Actual-Cost"] = str(actual_cost)
        if result is not None:
            headers["Limiter-Result"] = result
        try:
            # Never sent twice: a report that was heard and not answered would give back twice.
            return self._once("POST", "/v1/report", headers).status == 204
        except (OSError, http.client.HTTPException):
            return False

    def _headers(self, client, method, uri, api_key, account, user, plan, cost):
        named = {
            "Limiter-Client": client,
            "Limiter-Method": method,
            "Limiter-Uri": uri,
            "Limiter-Account": account,
            "Limiter-User": user,
            "Limiter-Plan": plan,
            "Limiter-Cost": cost,
            "Limiter-Token": self._token,
            self._key_header: api_key,
        }
        return {name: str(value) for name, value in named.items() if value is not None}

    def _ask(self, verb, target, headers):
        try:
            return self._once(verb, target, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # The kept connection was closed, as a rule before the question. Otherwise it is charged twice, which
            # refuses too early and admits nobody too many.
            return self._once(verb, target, headers)

    def _once(self, verb, target, headers):
        try:
            self._connection.request(verb, target, headers=headers)
            response = self._connection.getresponse()
            response.read()
            return response
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
