"""The Messages and Responses APIs of tandem serve: the same answers as a chat, in their own shapes."""
import concurrent.futures
import json
import unittest

from harness import TestCase
from serve_test import Server


def events_of(text):
    """Events whose first line names the payload's type; comments are left out."""
    events = []
    assert text.endswith("\n\n"), text[-40:]
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        events.append(json.loads(data[6:]))
        assert events[-1]["type"] == name[7:], block
    return events


def message(text, **fields):
    return {"model": "demo", "max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}


class Served(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "demo", "--api-key", "secret", "--max-running", "1", "--max-queue", "1")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body):
        return self.server.post(path, body, {"x-api-key": "secret", "anthropic-version": "2023-06-01"})

    def chat(self, text, **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24,
                                                  "enable_thinking": False, **fields})[2]


class Messages(Served):
    def test_a_message_says_what_a_chat_says(self):
        chat = self.chat("write function add")
        status, _, body = self.post("/v1/messages", message("write function add"))
        self.assertEqual(status, 200, body)
        self.assertEqual((body["type"], body["role"], body["model"]), ("message", "assistant", "demo"))
        self.assertEqual("".join(b["text"] for b in body["content"]), chat["choices"][0]["message"]["content"])
        self.assertEqual(body["stop_reason"], {"stop": "end_turn", "length": "max_tokens"}[chat["choices"][0]["finish_reason"]])
        usage = body["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(usage["output_tokens"], chat["usage"]["completion_tokens"])

    def test_w4_a_stream_says_what_the_whole_message_says(self):
        whole = self.post("/v1/messages", message("write function add"))[2]
        _, answer, text = self.post("/v1/messages", message("write function add", stream=True))
        self.assertEqual(answer.getheader("content-type"), "text/event-stream; charset=utf-8")
        events = [e for e in events_of(text) if e["type"] != "ping"]
        types = [e["type"] for e in events]
        self.assertEqual(types[:2], ["message_start", "content_block_start"])
        self.assertEqual(types[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertGreater(events[0]["message"]["usage"]["input_tokens"], 0)
        self.assertEqual("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), whole["content"][0]["text"])
        self.assertEqual(events[-2]["delta"]["stop_reason"], whole["stop_reason"])
        self.assertEqual(events[-2]["usage"]["output_tokens"], whole["usage"]["output_tokens"])

    def test_a_stop_sequence_ends_a_message_before_itself(self):
        text = self.post("/v1/messages", message("write function add"))[2]["content"][0]["text"]
        body = self.post("/v1/messages", message("write function add", stop_sequences=[text[5:9]]))[2]
        self.assertEqual((body["content"][0]["text"], body["stop_reason"], body["stop_sequence"]),
                         (text[: text.index(text[5:9])], "stop_sequence", text[5:9]))

    def test_results_of_tools_reach_the_prompt(self):
        tools = [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
        turns = [{"role": "user", "content": "go"},
                 {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "seven"}]}]
        chat = self.post("/v1/chat/completions", {
            "temperature": 0, "max_tokens": 24, "enable_thinking": False,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": tools[0]["input_schema"]}}],
            "messages": [turns[0], {"role": "assistant", "content": None, "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "seven"}]})[2]
        body = self.post("/v1/messages", message("", messages=turns, tools=tools))[2]
        self.assertEqual("".join(b["text"] for b in body["content"] if b["type"] == "text"), chat["choices"][0]["message"]["content"])
        count = self.post("/v1/messages/count_tokens", {"model": "demo", "messages": turns, "tools": tools})[2]
        self.assertEqual(count, {"input_tokens": chat["usage"]["prompt_tokens"]})

    def test_w7_errors_have_the_shape_of_the_api(self):
        def expect(status, kind, body, part=""):
            got, _, answer = self.post("/v1/messages", body)
            self.assertEqual((got, answer["type"], answer["error"]["type"]), (status, "error", kind), answer)
            self.assertIn(part, answer["error"]["message"])

        expect(400, "invalid_request_error", b"{")
        expect(400, "invalid_request_error", {"messages": []}, "max_tokens")
        expect(404, "not_found_error", message("a", model="other"), "other")
        expect(400, "invalid_request_error", message([{"type": "image"}]), "messages[0].content[0]")
        status, _, answer = self.server.post("/v1/messages", message("a"))
        self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"))
        status, _, answer = self.server.call("GET", "/v1/messages")
        self.assertEqual((status, answer["type"]), (405, "error"))

    def test_too_many_are_told_that_the_server_is_overloaded(self):
        body = message("a", max_tokens=300, ignore_eos=True)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: self.post("/v1/messages", body), range(8)))
        self.assertEqual({status for status, _, _ in answers}, {200, 529})
        refused = [(a, b) for status, a, b in answers if status == 529]
        self.assertTrue(all(a.getheader("retry-after") and b["error"]["type"] == "overloaded_error" for a, b in refused))


class Responses(Served):
    BODY = {"input": "write function add", "max_output_tokens": 24, "temperature": 0, "reasoning": {"effort": "none"}}

    def test_a_response_says_what_a_chat_says(self):
        chat = self.chat("write function add")
        status, _, body = self.post("/v1/responses", {**self.BODY, "store": True, "metadata": {"a": "b"}})
        self.assertEqual(status, 200, body)
        self.assertEqual((body["object"], body["model"], body["metadata"], body["store"]), ("response", "demo", {"a": "b"}, False))
        self.assertEqual(body["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.assertEqual(body["status"], {"stop": "completed", "length": "incomplete"}[chat["choices"][0]["finish_reason"]])
        self.assertEqual((body["usage"]["input_tokens"], body["usage"]["output_tokens"]),
                         (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]))

    def test_w4_a_stream_ends_with_the_whole_response(self):
        whole = self.post("/v1/responses", self.BODY)[2]
        events = events_of(self.post("/v1/responses", {**self.BODY, "stream": True})[2])
        self.assertEqual([e["type"] for e in events[:4]],
                         ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        text = whole["output"][0]["content"][0]["text"]
        self.assertEqual("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"), text)
        self.assertEqual(events[-1]["type"], "response." + whole["status"])
        self.assertEqual(events[-1]["response"]["output"][0]["content"], whole["output"][0]["content"])

    def test_w7_what_would_need_a_store_is_refused_by_name(self):
        status, _, body = self.post("/v1/responses", {**self.BODY, "previous_response_id": "resp_1"})
        self.assertEqual((status, body["error"]["param"]), (400, "previous_response_id"))
        status, _, body = self.post("/v1/responses", {"input": "a", "text": {"format": {"type": "json_object"}}})
        self.assertEqual((status, body["error"]["param"]), (400, "text.format"))


if __name__ == "__main__":
    unittest.main()
