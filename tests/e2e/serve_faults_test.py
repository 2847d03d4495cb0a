"""tandem serve with hostile clients and careless operators."""
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
import unittest

from harness import BINARY, DEMO, TestCase, tandem
from serve_test import Server, Served, chat, wait_until

LONG = {"prompt": "a", "ignore_eos": True, "max_tokens": 1900, "temperature": 0, "stream": True}


def begin(port, body, receive_buffer=None):
    """A connection over which `body` was sent; nothing of the answer has been read."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    data = json.dumps(body).encode()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return connection


class Hostile(Served):
    def small(self):
        status, _, body = self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        self.assertEqual(status, 200, body)

    def test_small_requests_do_not_wait_for_giant_ones(self):
        giants = [begin(self.server.port, {"prompt": "x" * 4_000_000, "max_tokens": 1}) for _ in range(4)]
        self.assertEqual(giants.pop(0).recv(12), b"HTTP/1.1 400")  # by now the others wait
        self.small()
        self.assertEqual(select.select(giants[-1:], [], [], 0)[0], [], "the giants were answered first")
        for connection in giants:
            self.assertEqual(connection.recv(12), b"HTTP/1.1 400")
            connection.close()

    def test_few_giant_bodies_may_wait(self):
        giant = {"prompt": "x" * 1_000_000, "max_tokens": 1}
        connections = [begin(self.server.port, giant) for _ in range(60)]
        statuses = [c.recv(12)[9:] for c in connections]
        for connection in connections:
            connection.close()
        self.assertEqual(set(statuses), {b"400", b"429"})
        self.small()

    def test_the_server_keeps_its_folders_to_itself(self):
        for variables in ({"messages": []}, {"tools": []}, {"add_generation_prompt": False}):
            status, _, body = self.server.post("/v1/chat/completions", chat("a", chat_template_kwargs=variables))
            self.assertEqual((status, body["error"]["param"]), (400, f"chat_template_kwargs.{next(iter(variables))}"))
            self.assertNotIn(str(DEMO), json.dumps(body))

    def test_wild_numbers(self):
        for field in ("n", "max_tokens", "seed", "top_k", "logprobs", "min_tokens", "repetition_context_size"):
            for number in (b"1e30", b"-1e30", b"9" * 400, b"1e999", b"1.5", b"18446744073709551616", b"NaN", b'"1"', b"[1]"):
                body = b'{"prompt":"a","max_tokens":1,"%s":%s}' % (field.encode(), number)
                status, _, answer = self.server.post("/v1/completions", body)
                self.assertIn(status, (200, 400) if field == "top_k" else (400,), (body, answer))
        self.small()

    def test_pipelined_requests_are_answered_in_turn(self):
        body = b'{"prompt":"a","max_tokens":1}'
        one = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: %%d\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as s:
            s.sendall(b"".join(one % i for i in range(30)))
            text = b""
            while text.count(b'"usage"') < 30:
                text += s.recv(1 << 16)
        self.assertEqual([int(i) for i in re.findall(rb"x-request-id: (\d+)", text.lower())], list(range(30)))

    def test_a_client_that_reads_nothing_holds_up_nobody(self):
        slow = begin(self.server.port, {**LONG, "logprobs": 20}, receive_buffer=2048)
        for _ in range(3):
            status, _, text = self.server.post("/v1/completions", {**LONG, "max_tokens": 100})
            self.assertTrue(status == 200 and text.endswith("data: [DONE]\n\n"))
        slow.close()
        self.assertTrue(wait_until(lambda: self.server.stats()["running"] == 0))

    def test_clients_that_vanish_at_any_byte(self):
        body = json.dumps(LONG).encode()
        whole = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for n in range(0, len(whole) + 1, 3):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as s:
                s.sendall(whole[:n])
        self.small()
        self.assertTrue(wait_until(lambda: self.server.stats()["running"] == 0 and self.server.stats()["connections"] <= 1))


class Careless(TestCase):
    def test_empty_keys_and_names_are_refused(self):
        for flag in ("--api-key", "--served-model-name", "--cors-origin"):
            self.expect_error(tandem("serve", "--model", DEMO, "--port", "0", flag, "", timeout=20), 2, flag)
            self.expect_error(tandem("serve", "--model", DEMO, "--port", "0", flag, "a\r\nb", timeout=20), 2, flag)

    def test_killed_under_load_a_server_starts_again_on_its_port(self):
        server = Server()
        streams = [begin(server.port, LONG) for _ in range(3)]
        for stream in streams:
            stream.recv(100)
        second = tandem("serve", "--model", DEMO, "--threads", "1", "--port", str(server.port))
        self.expect_error(second, 1, "in use")
        server.process.kill()
        server.process.wait()
        server.stop()
        again = subprocess.Popen([BINARY, "serve", "--model", DEMO, "--threads", "1", "--port", str(server.port)], stderr=subprocess.PIPE)
        self.assertIn(b"serving", again.stderr.readline())
        again.send_signal(signal.SIGTERM)
        self.assertEqual(again.wait(timeout=30), 0)
        again.stderr.close()
        for stream in streams:
            stream.close()

    def test_told_twice_a_server_ends_at_once(self):
        server = Server()
        self.addCleanup(server.stop)
        stream = begin(server.port, LONG)
        self.addCleanup(stream.close)
        stream.recv(100)
        server.process.send_signal(signal.SIGTERM)
        self.assertIn(b"finishing", server.process.stderr.readline())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=10), -signal.SIGTERM)

    def test_nowhere_to_log_is_no_reason_to_end(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        for streams in ("2>&-", "2>/dev/full", "<&- >&- 2>&-"):
            command = f'exec "$0" serve --model "$1" --threads 1 --port {port} {streams}'
            server = subprocess.Popen(["bash", "-c", command, BINARY, DEMO], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            answered = wait_until(lambda: self.answers(port))
            server.send_signal(signal.SIGTERM)
            self.assertEqual((answered, server.wait(timeout=30)), (True, 0), streams)

    @staticmethod
    def answers(port):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                return s.recv(15) == b"HTTP/1.1 200 OK"
        except OSError:
            return False

    def test_out_of_descriptors_a_server_waits_and_goes_on(self):
        command = 'ulimit -n 64; exec "$0" serve --model "$1" --threads 1 --port 0'
        server = subprocess.Popen(["bash", "-c", command, BINARY, DEMO], stderr=subprocess.PIPE)
        port = int(re.search(rb":(\d+)/v1", server.stderr.readline()).group(1))
        held = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(150)]
        time.sleep(0.2)
        self.assertLessEqual(len(os.listdir(f"/proc/{server.pid}/fd")), 64)
        for connection in held:
            connection.close()
        self.assertTrue(wait_until(lambda: self.answers(port)))
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=30), 0)
        server.stderr.close()


if __name__ == "__main__":
    unittest.main()
