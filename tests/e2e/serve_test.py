"""tandem serve over real sockets: the API's answers, streams, errors, cancellation and end."""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import time
import unittest

from harness import DEMO, TestCase, start, tandem

GREEDY = {"temperature": 0, "max_tokens": 24}
JSON = {"Content-Type": "application/json"}


class Server:
    """A running server of the demo model on a port of its own."""

    def __init__(self, *options):
        self.process = start("serve", "--model", DEMO, "--port", "0", "--threads", "1", *options)
        line = self.process.stderr.readline().decode()
        while "serving" not in line:
            if not line:
                raise AssertionError("the server ended before it served")
            line = self.process.stderr.readline().decode()
        self.port = int(re.search(r":(\d+)/v1", line).group(1))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(self, method, path, body=None, headers=None):
        """(status, headers, body), the body parsed where it is JSON."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {**JSON, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        is_json = answer.getheader("content-type", "").startswith("application/json")
        return answer.status, answer, json.loads(text) if is_json and text else text.decode()

    def post(self, path, body, headers=None):
        return self.call("POST", path, body, headers)

    def stats(self):
        return self.call("GET", "/v1/stats")[2]


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **GREEDY, **fields}


def events_of(text):
    """Events and comments of a strict reading of server-sent events."""
    events, comments = [], []
    assert text.endswith("\n\n"), text[-40:]
    for block in text[:-2].split("\n\n"):
        assert "\n" not in block, block
        if block.startswith(":"):
            comments.append(block[1:].strip())
        else:
            assert block.startswith("data: "), block
            events.append(block[6:])
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(e) for e in events[:-1]], comments


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


class Served(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-running", "4", "--served-model-name", "demo", "--served-model-name", "alias")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


class Answers(Served):
    def test_a_completion_is_what_generate_says(self):
        prompt = "def fib(n):"
        expected = self.json_of("generate", "--model", DEMO, "--prompt", prompt, "--temperature", "0", "--max-tokens", "24", "--json",
                                "--threads", "1")
        status, _, body = self.server.post("/v1/completions", {"prompt": prompt, **GREEDY})
        self.assertEqual(status, 200, body)
        self.assertEqual(body["choices"][0]["text"], expected["text"])
        self.assertEqual(body["object"], "text_completion")

    def test_the_shape_of_a_chat_answer(self):
        status, answer, body = self.server.post("/v1/chat/completions", chat("write function add", model="alias"), {"X-Request-Id": "my.id:1"})
        self.assertEqual(status, 200, body)
        self.assertEqual(answer.getheader("x-request-id"), "my.id:1")
        self.assertEqual((body["object"], body["model"]), ("chat.completion", "alias"))
        choice = body["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertNotIn("tool_calls", choice["message"])
        self.assertIn(choice["finish_reason"], ("stop", "length"))
        usage = body["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])

    def test_w2_w4_a_stream_says_what_the_whole_answer_says(self):
        whole = self.server.post("/v1/chat/completions", chat("write function add", logprobs=True, top_logprobs=2))[2]
        _, answer, text = self.server.post("/v1/chat/completions", chat("write function add", logprobs=True, top_logprobs=2, stream=True,
                                                                          stream_options={"include_usage": True}))
        self.assertEqual(answer.getheader("content-type"), "text/event-stream; charset=utf-8")
        events, comments = events_of(text)
        self.assertEqual(comments[0], "keep-alive")
        self.assertTrue(any(c.startswith("generation_stats {") for c in comments))
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
        self.assertEqual(sum("role" in d for d in deltas), 1)
        self.assertEqual("".join(d.get("content") or "" for d in deltas), whole["choices"][0]["message"]["content"])
        finishes = [e["choices"][0]["finish_reason"] for e in events if e["choices"] and e["choices"][0]["finish_reason"]]
        self.assertEqual(finishes, [whole["choices"][0]["finish_reason"]])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        entries = [entry for e in events if e["choices"] and e["choices"][0]["logprobs"] for entry in e["choices"][0]["logprobs"]["content"]]
        self.assertEqual(entries, whole["choices"][0]["logprobs"]["content"])

    def test_e2_a_seed_reproduces_and_zero_is_a_seed(self):
        def text(**fields):
            return self.server.post("/v1/completions", {"prompt": "import", "max_tokens": 32, "temperature": 1, **fields})[2]["choices"][0]["text"]

        self.assertEqual(text(seed=0), text(seed=0))
        self.assertNotEqual(text(seed=0), text(seed=42))

    def test_company_changes_no_answer(self):
        prompts = [f"def f{i}(x):" for i in range(12)]
        ask = lambda p: self.server.post("/v1/completions", {"prompt": p, "max_tokens": 32, "temperature": 0})[2]["choices"][0]["text"]
        alone = [ask(p) for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            self.assertEqual(list(pool.map(ask, prompts)), alone)

    def test_several_prompts_and_choices_come_in_order(self):
        _, _, body = self.server.post("/v1/completions", {"prompt": ["def a", "def b"], "n": 2, "echo": True, **GREEDY})
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2, 3])
        self.assertEqual([c["text"][:5] for c in body["choices"]], ["def a", "def a", "def b", "def b"])

    def test_e7_a_stop_string_ends_the_answer_before_itself(self):
        whole = self.server.post("/v1/completions", {"prompt": "def fib(n):", **GREEDY})[2]["choices"][0]["text"]
        stop = whole[5:9]
        choice = self.server.post("/v1/completions", {"prompt": "def fib(n):", "stop": stop, **GREEDY})[2]["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]), (whole[: whole.index(stop)], "stop", stop))

    def test_e4_exactly_max_tokens(self):
        for n in (1, 2, 3, 7, 16):
            usage = self.server.post("/v1/completions", {"prompt": "def fib(n):", "max_tokens": n, "temperature": 0})[2]["usage"]
            self.assertEqual(usage["completion_tokens"], n)

    def test_a_conversation_goes_on_from_what_was_computed(self):
        first = chat("x = 1\n" * 300, max_tokens=16)
        cold = self.server.post("/v1/chat/completions", first)[2]
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        said = cold["choices"][0]["message"]["content"]
        second = {**first, "messages": first["messages"] + [{"role": "assistant", "content": said}, {"role": "user", "content": "and then?"}]}
        warm = self.server.post("/v1/chat/completions", second)[2]
        self.assertGreater(warm["usage"]["prompt_tokens_details"]["cached_tokens"], cold["usage"]["prompt_tokens"] - 80)
        apart = self.server.post("/v1/chat/completions", {**second, "prefix_cache": False})[2]
        self.assertEqual(apart["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(apart["choices"], warm["choices"])

    def test_tokens_and_text(self):
        tokens = self.server.post("/tokenize", {"content": "def fib(n):"})[2]["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens})[2]["content"], "def fib(n):")

    def test_models_health_and_metrics(self):
        self.assertEqual([m["id"] for m in self.server.call("GET", "/v1/models")[2]["data"]], ["demo", "alias"])
        self.assertEqual(self.server.call("GET", "/v1/models/alias")[0], 200)
        for path in ("/health", "/ready"):
            self.assertEqual(self.server.call("GET", path)[0], 200)
        self.assertEqual(self.server.call("HEAD", "/health")[0], 200)
        _, answer, text = self.server.call("GET", "/metrics")
        self.assertTrue(answer.getheader("content-type").startswith("text/plain; version=0.0.4"))
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) tandem_\w+ .+|tandem_\w+\{model="demo"\} \d+)$')

    def test_unknown_fields_are_named_not_refused(self):
        status, answer, _ = self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "wild": 1})
        self.assertEqual((status, answer.getheader("x-tandem-ignored")), (200, "wild"))


class Errors(Served):
    def expect(self, status, param, body, path="/v1/chat/completions", headers=None):
        got, _, answer = self.server.post(path, body, headers)
        self.assertEqual(got, status, answer)
        self.assertEqual(set(answer["error"]) >= {"message", "type", "param", "code"}, True, answer)
        if param is not None:
            self.assertEqual(answer["error"]["param"], param, answer)
        return answer["error"]

    def test_w7_wrong_requests_are_refused_by_name(self):
        self.expect(400, None, b"{")
        self.expect(400, None, b"[]")
        self.expect(400, None, b"\xff")
        self.expect(400, None, b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}")
        self.expect(400, "messages", {})
        self.expect(400, "messages", {"messages": []})
        self.expect(400, "temperature", chat("a", temperature=3))
        self.expect(400, "temperature", chat("a", temperature=True))
        self.expect(400, "top_p", chat("a", top_p=0))
        self.expect(400, "stop[0]", chat("a", stop=[""]))
        self.expect(400, "response_format", chat("a", response_format={"type": "json_object"}))
        self.expect(404, None, chat("a", model="other"))
        self.expect(400, "best_of", {"prompt": "a", "best_of": 2}, "/v1/completions")
        self.expect(415, None, b"<a/>", headers={"Content-Type": "application/xml"})
        error = self.expect(400, None, {"prompt": "word " * 5000, "max_tokens": 1}, "/v1/completions")
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertEqual(self.server.call("GET", "/v1/nothing")[0], 404)
        status, answer, _ = self.server.call("DELETE", "/v1/models")
        self.assertEqual((status, answer.getheader("allow")), (405, "GET"))
        self.assertEqual(self.server.post("/v1/embeddings", {})[0], 501)

    def test_a_hundred_megabytes_are_refused_before_they_are_read(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 104857600\r\n\r\n")
            self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 413 "))

    def test_other_pages_and_other_names_are_refused(self):
        page = {"Origin": "https://elsewhere.example"}
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, page)[0], 403)
        self.assertEqual(self.server.call("OPTIONS", "/v1/completions", headers=page)[0], 403)
        self.assertEqual(self.server.call("GET", "/health", headers={"Host": "elsewhere.example"})[0], 403)
        own = f"http://127.0.0.1:{self.server.port}"
        status, answer, _ = self.server.call("OPTIONS", "/v1/completions", headers={"Origin": own})
        self.assertEqual((status, answer.getheader("access-control-allow-origin")), (204, own))
        self.assertEqual(self.server.call("GET", "/v1/models", headers={"Origin": own})[1].getheader("access-control-allow-origin"), own)

    def test_special_tokens_in_a_message_stay_text(self):
        plain = self.server.post("/v1/chat/completions", chat("x"))[2]["usage"]["prompt_tokens"]
        written = self.server.post("/v1/chat/completions", chat("x<|im_end|>"))[2]["usage"]["prompt_tokens"]
        self.assertGreater(written - plain, 1)


class Clients(Served):
    def begin_stream(self, **fields):
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "def fib(n):", "stream": True, "ignore_eos": True, "max_tokens": 1900, **fields}), JSON)
        answer = connection.getresponse()
        answer.readline()
        return connection, answer

    def test_a_client_that_goes_ends_its_work(self):
        before = self.server.stats()["cancelled"]
        connection, answer = self.begin_stream()
        answer.close()
        connection.close()
        self.assertTrue(wait_until(lambda: self.server.stats()["running"] == 0), self.server.stats())
        self.assertEqual(self.server.stats()["cancelled"], before + 1)

    def test_cancel_by_id(self):
        connection, answer = self.begin_stream()
        line = b""
        while not line.startswith(b"data: {"):
            line = answer.readline()
        self.assertEqual(self.server.post(f"/v1/cancel/{json.loads(line[6:])['id']}", {})[0], 200)
        self.assertTrue(wait_until(lambda: self.server.stats()["running"] == 0))
        self.assertEqual(self.server.post("/v1/cancel/cmpl-unknown", {})[0], 404)
        answer.close()
        connection.close()

    def test_e9_many_that_vanish_leave_nothing(self):
        descriptors = lambda: len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
        before = descriptors()
        for _ in range(30):
            connection, answer = self.begin_stream()
            answer.close()
            connection.close()
        self.assertTrue(wait_until(lambda: self.server.stats()["running"] == 0 and descriptors() <= before + 1), self.server.stats())


class Ends(TestCase):
    def test_told_to_end_a_server_finishes_what_runs(self):
        server = Server()
        self.addCleanup(server.stop)
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 300}), JSON)
        answer = connection.getresponse()
        self.addCleanup(connection.close)
        answer.readline()
        server.process.send_signal(signal.SIGTERM)
        events, _ = events_of((b": \n" + answer.read()).decode().split("\n\n", 1)[1])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
        self.assertEqual(server.process.wait(timeout=60), 0)

    def test_a_full_queue_is_429_and_keys_are_asked_for(self):
        server = Server("--max-running", "1", "--max-queue", "1", "--api-key", "secret")
        self.addCleanup(server.stop)
        self.assertEqual(server.call("GET", "/health")[0], 200)
        status, answer, _ = server.call("GET", "/v1/models")
        self.assertEqual((status, answer.getheader("www-authenticate")), (401, "Bearer"))
        self.assertEqual(server.call("GET", "/v1/models", headers={"Authorization": "Bearer secre"})[0], 401)
        self.assertEqual(server.call("GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
        key = {"x-api-key": "secret"}
        body = {"prompt": "a", "ignore_eos": True, "max_tokens": 400}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.post("/v1/completions", body, key)[:2], range(8)))
        statuses = sorted(status for status, _ in answers)
        self.assertEqual(set(statuses), {200, 429})
        self.assertTrue(all(a.getheader("retry-after") for s, a in answers if s == 429))

    def test_wrong_flags(self):
        self.expect_error(tandem("serve", "--model", DEMO, "--port", "70000"), 2, "--port")
        self.expect_error(tandem("serve", "--model", DEMO, "--host", "203.0.113.1", "--port", "1"), 1, "203.0.113.1")


if __name__ == "__main__":
    unittest.main()
