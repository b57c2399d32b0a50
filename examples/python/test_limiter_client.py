"""The client against a limiterd: `python3 test_limiter_client.py unix:/path`. Run by the project's tests, which
start one with the login endpoint of the documentation (charge = "on-failure")."""

import sys
import threading
import unittest

from limiter_client import Limiter

ADDRESS = sys.argv.pop() if len(sys.argv) > 1 else "unix:/run/limiter/requests-http.sock"


class Client(unittest.TestCase):
    def setUp(self):
        self.limiter = Limiter(ADDRESS, timeout=10)

    def login(self, client, account):
        return self.limiter.check(client=client, method="POST", uri="/v1/login", account=account)

    def test_five_attempts_at_an_account(self):
        decisions = [self.login(f"198.51.100.{n}", "brute") for n in range(20)]
        self.assertEqual([d.allowed for d in decisions], [True] * 5 + [False] * 15)
        refused = decisions[-1]
        self.assertEqual(refused.reason, "over")
        self.assertTrue(800 <= refused.retry_after <= 930, refused)
        self.assertEqual(refused.headers["RateLimit-Reset"], refused.headers["Retry-After"])
        self.assertEqual(refused.headers["RateLimit-Remaining"], "0")

    def test_success_is_given_back(self):
        for _ in range(12):
            self.assertTrue(self.login("198.51.101.1", "honest").allowed)
            self.assertTrue(
                self.limiter.report(
                    client="198.51.101.1", method="POST", uri="/v1/login", account="honest", result="success"
                )
            )

    def test_threads_never_get_more_together(self):
        admitted = []

        def hammer():
            limiter = Limiter(ADDRESS, timeout=30)
            for _ in range(20):
                if limiter.check(client="198.51.102.1", method="GET", uri="/v1/search/x").allowed:
                    admitted.append(1)

        threads = [threading.Thread(target=hammer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(admitted), 30)

    def test_a_plan_comes_from_a_known_key(self):
        known = self.limiter.check(client="198.51.103.1", method="GET", uri="/v1/search/x", api_key="key-pro")
        unknown = self.limiter.check(client="198.51.103.1", method="GET", uri="/v1/search/x", api_key="guessed")
        self.assertEqual(known.headers["RateLimit-Limit"], "6000")
        self.assertEqual(unknown.headers["RateLimit-Limit"], "30")

    def test_unreachable_is_decided_by_the_caller(self):
        for allow in (False, True):
            limiter = Limiter("unix:/nonexistent", allow_when_unreachable=allow)
            decision = limiter.check(client="198.51.104.1", method="GET", uri="/")
            self.assertEqual((decision.allowed, decision.reason), (allow, "unreachable"))

    def test_what_cannot_be_judged_is_an_error(self):
        with self.assertRaises(ValueError):
            self.limiter.check(client="nobody", method="GET", uri="/")


if __name__ == "__main__":
    unittest.main()
