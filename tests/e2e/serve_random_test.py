"""Mixed requests: a server that runs 16 at once with drafters and a cache answers as one that runs each alone without either."""
import concurrent.futures
import json
import random
import unittest

from harness import TestCase
from serve_test import Server

N_REQUESTS = 200


def requests(seed):
    """Chats and completions with shared beginnings, every kind of sampling, stops, log-probabilities, several choices."""
    rng = random.Random(seed)
    sources = ["import os\n\n\ndef read(path):\n", "class Config:\n    def __init__(self, path):\n", "# Sums\n\nThe sum of "]
    shared = [rng.choice(sources) * rng.randrange(1, 40) for _ in range(6)]
    out = []
    for i in range(N_REQUESTS):
        text = rng.choice(shared)[: rng.randrange(4, 1500)] + rng.choice(["", f"x{i} = ", "def f(", "\n"])
        body = {"max_tokens": rng.randrange(1, 40), "seed": rng.randrange(1000)}
        if rng.random() < 0.6:
            body["temperature"] = rng.choice([0.3, 0.8, 1.0, 1.5])
        else:
            body["temperature"] = 0
        for key, values in (("top_k", [1, 5, 50, 100]), ("top_p", [0.5, 0.9]), ("min_p", [0.05]), ("repetition_penalty", [1.1]),
                            ("presence_penalty", [0.5]), ("frequency_penalty", [-0.5, 0.7]), ("stop", ["\n\n", ["self", "):"]]),
                            ("n", [2, 3]), ("ignore_eos", [True]), ("min_tokens", [1]), ("logit_bias", [{"17": 3, "99": -100}])):
            if rng.random() < 0.15:
                body[key] = rng.choice(values)
        if rng.random() < 0.5:
            body["messages"] = [{"role": "user", "content": text}]
            if rng.random() < 0.3:
                body.update(logprobs=True, top_logprobs=rng.randrange(4))
            out.append(("/v1/chat/completions", body))
        else:
            body["prompt"] = text
            if rng.random() < 0.3:
                body["logprobs"] = rng.randrange(4)
            out.append(("/v1/completions", body))
    return out


class Random(TestCase):
    def test_200_mixed_requests_get_the_answers_they_get_alone(self):
        work = requests(20261201)
        plain = Server("--max-running", "1", "--drafter", "none", "--cache-memory", "0")
        self.addCleanup(plain.stop)
        full = Server("--max-running", "16", "--cache-memory", "16")
        self.addCleanup(full.stop)

        def choices(server, request):
            status, _, body = server.post(*request)
            self.assertEqual(status, 200, (request, body))
            return body["choices"]

        alone = [choices(plain, request) for request in work]
        for _ in range(2):  # the second time with a full cache
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                together = list(pool.map(lambda request: choices(full, request), work))
            for request, one, other in zip(work, alone, together):
                self.assertEqual(one, other, json.dumps(request)[:2000])
        stats = full.stats()
        self.assertGreater(stats["accepted_tokens"], 0)
        self.assertEqual((stats["running"], stats["queued"]), (0, 0))


if __name__ == "__main__":
    unittest.main()
