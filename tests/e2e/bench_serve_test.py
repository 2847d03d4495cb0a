"""tandem bench serve: against a model it serves itself, and against endpoints that behave in known ways."""
import http.server
import json
import threading
import time
import unittest

from harness import DEMO, TestCase, tandem

KEYS = {
    "bench", "model", "backend", "threads", "commit", "latency_ms", "test", "prompts", "stream", "cached", "rate_per_s",
    "concurrency", "depth", "pp", "tg", "requests", "errors", "first_error", "prompt_tokens", "cached_tokens",
    "generated_tokens", "tokens_per_s", "tokens_per_s_min", "tokens_per_s_max", "aggregate_tokens_per_s",
    "steady_tokens_per_s", "end_to_end_tokens_per_s", "prefill_tokens_per_s", "prefill_aggregate_tokens_per_s",
    "ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p99", "tpot_ms_p50", "tpot_ms_p99", "inter_token_ms_p50", "inter_token_ms_p99",
    "round_ms_p50", "round_ms_p99", "server_tokens_per_s", "server_ttft_ms_p50", "mean_accepted", "server_disagrees",
    "coherent", "client_cpu_share"}
PAUSE_S = 0.2


class Endpoint:
    """Listens on a free port; `answer(handler, body)` answers POST /v1/completions; there is no /tokenize."""

    def __init__(self, answer):
        bodies = self.bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def send(self, status, document):
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, *pieces):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in (*pieces, "data: [DONE]\n\n"):
                    if isinstance(piece, float):
                        time.sleep(piece)
                        continue
                    data = piece.encode() if isinstance(piece, str) else f"data: {json.dumps(piece)}\n\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")

            def do_GET(self):
                self.send(200, {"data": [{"id": "fake"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/completions":
                    return self.send(404, {"error": {"message": "no such path"}})
                bodies.append(body)
                answer(self, body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def event(text, **more):
    return {"choices": [{"index": 0, "text": text}], **more}


class BenchServe(TestCase):
    def rows(self, *args):
        rows = self.json_of("bench", "serve", "--json", "--repeat", "2", *args)
        for row in rows:
            self.assertLessEqual(KEYS, set(row))
            self.assertEqual(row["bench"], "serve")
            self.assertTrue(row["coherent"])
        return rows

    def endpoint(self, answer):
        endpoint = Endpoint(answer)
        self.addCleanup(endpoint.stop)
        return endpoint

    def test_a_model_is_served_and_held_against_its_engine(self):
        rows = self.rows("--model", DEMO, "--threads", "1", "--concurrency", "1,3", "--pp", "20,70", "--tg", "12")
        self.assertEqual([(r["concurrency"], r["pp"]) for r in rows], [(c, p) for c in (1, 3) for p in (20, 70)])
        for row in rows:
            n = 2 * row["concurrency"]
            self.assertEqual((row["requests"], row["errors"], row["first_error"]), (n, 0, None))
            self.assertEqual((row["generated_tokens"], row["prompt_tokens"]), (12 * n, row["pp"] * n))
            self.assertEqual(row["cached_tokens"], 0, "every prompt is new")
            self.assertEqual(row["threads"], 1)
            self.assertGreater(min(row["aggregate_tokens_per_s"], row["bare_tokens_per_s"], row["ttft_ms_p50"]), 0)
            self.assertLessEqual(row["ttft_ms_p50"], row["ttft_ms_p99"])
            self.assertLess(row["overhead"], 1)

    def test_a_depth_is_loaded_before_and_its_loading_is_a_row(self):
        load, row = self.rows("--model", DEMO, "--threads", "1", "--concurrency", "2", "--depth", "128", "--pp", "20", "--tg", "4")
        self.assertEqual((load["test"], load["pp"], load["tg"], load["prompt_tokens"]), ("load d128", 128, 1, 4 * 128))
        self.assertEqual((row["test"], row["depth"]), ("pp20 tg4 @ d128", 128))
        self.assertEqual(row["prompt_tokens"], 4 * 148)
        self.assertGreater(row["cached_tokens"], 0)

    def test_cached_prompts_come_again_and_answers_may_come_whole(self):
        (row,) = self.rows("--model", DEMO, "--threads", "1", "--cached", "--pp", "200", "--tg", "3", "--no-stream", "--prompts", "code")
        self.assertGreaterEqual(row["cached_tokens"], 2 * 128)
        self.assertEqual((row["generated_tokens"], row["stream"], row["ttft_ms_p50"]), (6, False, None))
        self.assertGreater(row["end_to_end_tokens_per_s"], 0)

    def test_an_open_loop_sends_at_its_own_times(self):
        (row,) = self.rows("--model", DEMO, "--threads", "1", "--rate", "500", "--requests", "5", "--pp", "9", "--tg", "2")
        self.assertEqual((row["requests"], row["errors"], row["rate_per_s"]), (10, 0, 500))
        self.assertLessEqual(row["concurrency"], 5)

    def test_people_get_a_table_and_a_ledger_grows(self):
        ledger = self.tmp / "serve.jsonl"
        run = tandem("bench", "serve", "--model", DEMO, "--threads", "1", "--repeat", "1", "--pp", "9", "--tg", "2", "--ledger", ledger)
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out, r"serve of .* on .*\ntest +concurrency.* overhead\npp9 tg2 ")
        self.assertEqual(json.loads(ledger.read_text())["bench"], "serve")

    def test_the_first_token_is_the_first_event_with_text(self):
        def answer(handler, _):
            usage = {"prompt_tokens": 40, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 7}}
            handler.stream(event(""), ": keep-alive\n\n", PAUSE_S, event("a"), PAUSE_S, event("\"text\":\"\""), event(""),
                           {"choices": [], "usage": usage},
                           ': generation_stats {"generation_tps": 1e9, "ttft_ms": 3.5, "mean_accepted": 0.5}\n\n')

        endpoint = self.endpoint(answer)
        (row,) = self.rows("--url", endpoint.url + "/v1", "--concurrency", "2", "--tg", "4")
        self.assertEqual((row["model"], row["backend"], row["requests"]), ("fake", endpoint.url + "/v1", 4))
        self.assertEqual((row["generated_tokens"], row["prompt_tokens"], row["cached_tokens"]), (16, 160, 28))
        self.assertGreaterEqual(row["ttft_ms_p50"], PAUSE_S * 1e3)
        self.assertLessEqual(row["tokens_per_s"], 3 / PAUSE_S)
        self.assertEqual((row["server_ttft_ms_p50"], row["mean_accepted"], row["server_disagrees"]), (3.5, 0.5, True))
        body = endpoint.bodies[-1]
        self.assertEqual((body["max_tokens"], body["ignore_eos"], body["stream"], body["model"]), (4, True, True, "fake"))
        self.assertEqual(len({b["prompt"][:12] for b in endpoint.bodies}), len(endpoint.bodies), "no text is sent twice")

    def test_a_server_that_refuses_is_counted(self):
        endpoint = self.endpoint(lambda handler, _: handler.send(429, {"error": {"message": "no room"}}))
        run = tandem("bench", "serve", "--url", endpoint.url, "--repeat", "1", "--concurrency", "3", "--json")
        self.expect_error(run, 1, "every request failed", "429", "no room")
        (row,) = json.loads(run.out)
        self.assertEqual((row["requests"], row["errors"], row["first_error"]), (3, 3, "429: no room"))
        self.assertEqual((row["aggregate_tokens_per_s"], row["generated_tokens"]), (None, 0))

    def test_errors_inside_streams_and_streams_that_break_off_are_counted(self):
        def answer(handler, body):
            kind = len(endpoint.bodies) % 3
            if kind == 0:
                return handler.stream(event("a"), event("b"))
            if kind == 1:
                return handler.stream(event("a"), {"error": {"message": "engine failed"}})
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.close_connection = True
            handler.wfile.write(b"5\r\ndata:")

        endpoint = self.endpoint(answer)
        (row,) = self.rows("--url", endpoint.url, "--requests", "3")
        self.assertEqual((row["requests"], row["errors"], row["generated_tokens"]), (6, 4, 4))

    def test_nobody_there(self):
        endpoint = Endpoint(None)
        endpoint.stop()
        self.expect_error(tandem("bench", "serve", "--url", endpoint.url), 1, endpoint.url, "onnection")

    def test_wrong_usage(self):
        for args, word in (((), "--url"), (("--url", "x", "--model", "y"), "--url"), (("--url", "https://x"), "https"),
                           (("--url", "x", "--rate", "1", "--concurrency", "2"), "--rate"),
                           (("--model", DEMO, "--concurrency", "65"), "--concurrency"),
                           (("--url", "x", "--prompts", "verse"), "--prompts")):
            run = tandem("bench", "serve", *args)
            self.assertIn(run.code, (1, 2), run)
            self.expect_error(run, run.code, word)


if __name__ == "__main__":
    unittest.main()
