"""What scripts rely on: the JSON of every subcommand, exit codes, and that output arrives or its loss is told."""
import json
import math
import os
import signal
import time
import unittest

from harness import DEMO, GOLDENS, TINY, TestCase, read_safetensors, start, tandem

DEMO8 = json.loads((GOLDENS / "demo8_target.json").read_text())


def generate_tiny(*args):
    return ("generate", "--model", TINY, "--prompt-tokens", "1,2,3", "--json", *args)


class Generate(TestCase):
    def test_json_is_one_object_with_the_fields_that_scripts_read(self):
        for backend in ("reference", "cpu", "auto"):
            answer = self.json_of(*generate_tiny("--max-tokens", "5", "--backend", backend, "--drafter", "none"))
            self.assertEqual(set(answer), {"tokens", "text", "finish_reason", "stats"})
            self.assertEqual(len(answer["tokens"]), 5)
            self.assertIsNone(answer["text"], "the folder has no tokenizer")
            self.assertEqual(answer["finish_reason"], "length")
            stats = answer["stats"]
            self.assertEqual(stats["prompt_tokens"], 3)
            self.assertEqual(stats["generated_tokens"], 5)
            for field in ("prefill_s", "decode_s", "decode_tokens_per_s"):
                self.assertGreater(stats[field], 0)

    def test_a_card_that_is_not_there_is_said_with_what_to_do(self):
        run = tandem(*generate_tiny("--max-tokens", "5", "--backend", "cuda"))
        if run.code != 0:  # no card, or a build without the backend
            self.assertRegex(run.err, "no NVIDIA GPU can be used here: .*--backend cpu|expected one of")

    def test_the_embedded_model_continues_its_golden_prompt(self):
        golden = DEMO8[0]
        by_text = self.json_of("generate", "--model", DEMO, "--prompt", golden["prompt"], "--max-tokens", "48", "--json")
        self.assertEqual(by_text["tokens"], golden["greedy"][:48])
        self.assertTrue(golden["text"].startswith(by_text["text"]))
        self.assertEqual(by_text["stats"]["prompt_tokens"], len(golden["ids"]))
        ids = ",".join(map(str, golden["ids"]))
        by_ids = self.json_of("generate", "--model", DEMO, "--prompt-tokens", ids, "--max-tokens", "48", "--json")
        self.assertEqual(by_ids["tokens"], by_text["tokens"])
        self.assertEqual(by_ids["text"], by_text["text"])

    def test_prompts_come_from_a_file_or_standard_input_as_well(self):
        golden = DEMO8[0]
        common = ("generate", "--model", DEMO, "--max-tokens", "8", "--json")
        file = self.tmp / "prompt.txt"
        file.write_bytes(golden["prompt"].encode())
        wanted = golden["greedy"][:8]
        self.assertEqual(self.json_of(*common, "--prompt-file", file)["tokens"], wanted)
        self.assertEqual(self.json_of(*common, "-", stdin=golden["prompt"].encode())["tokens"], wanted)
        self.assertEqual(self.json_of(*common, "--prompt-file", "-", stdin=golden["prompt"].encode())["tokens"], wanted)

    def test_people_get_the_text_alone_on_standard_output_and_figures_below(self):
        common = ("generate", "--model", DEMO, "--prompt", "import os\n", "--max-tokens", "12")
        run = tandem(*common)
        self.assertEqual(run.code, 0, run)
        self.assertEqual(run.out, self.json_of(*common, "--json")["text"] + "\n")
        self.assertRegex(run.err, r"prompt tokens in .* tokens generated at .*loaded in .* s; (cpu|cuda)/")
        self.assertNotIn("context was full", run.err)
        self.assertEqual(tandem(*common, "--echo").out, "import os\n" + run.out)

    def test_an_answer_that_fills_the_context_says_so(self):
        run = tandem("generate", "--model", DEMO, "--prompt", "x", "--context", "20", "--max-tokens", "50", "--ignore-eos")
        self.assertIn("until the context was full", run.err)

    def test_a_seed_fixes_a_drawn_answer(self):
        def drawn(seed):
            return self.json_of(*generate_tiny("--temperature", "1", "--seed", seed, "--max-tokens", "12"))["tokens"]

        self.assertEqual(drawn("7"), drawn("7"))
        self.assertNotEqual(drawn("7"), drawn("8"))

    def test_the_checkpoint_decides_whether_tokens_are_drawn(self):
        model = self.copy()
        args = ("generate", "--model", model, "--prompt-tokens", "1,2,3", "--max-tokens", "12", "--seed", "5", "--json")
        greedy = self.json_of(*args)["tokens"]
        (model / "generation_config.json").write_text('{"do_sample": true, "temperature": 1.5}')
        self.assertNotEqual(self.json_of(*args)["tokens"], greedy)
        self.assertEqual(self.json_of(*args, "--temperature", "0")["tokens"], greedy)
        (model / "generation_config.json").unlink()
        self.assertEqual(self.json_of(*args)["tokens"], greedy)

    def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(self):
        model = self.copy()
        args = ("generate", "--model", model, "--prompt-tokens", "1,2,3", "--max-tokens", "12", "--json")
        plain = self.json_of(*args)["tokens"]
        stop = next(t for i, t in enumerate(plain) if i > 1 and t not in plain[:i])
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
        stopped = self.json_of(*args)
        self.assertEqual(stopped["tokens"], plain[: plain.index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")
        ignored = self.json_of(*args, "--ignore-eos")
        self.assertEqual(ignored["tokens"], plain, "a stop token is then an ordinary one")
        self.assertEqual(ignored["finish_reason"], "length")

    def test_a_stop_text_ends_the_answer_before_itself(self):
        golden = DEMO8[0]
        common = ("generate", "--model", DEMO, "--prompt", golden["prompt"], "--max-tokens", "48", "--json")
        answer = self.json_of(*common, "--stop", "never said", "--stop", "fibonacci(n, ")
        self.assertEqual(answer["text"], golden["text"].partition("fibonacci(n, ")[0])
        self.assertEqual(answer["finish_reason"], "stop")

    def test_logprobs_of_the_answer_are_those_of_score(self):
        answer = self.json_of(*generate_tiny("--max-tokens", "4", "--backend", "reference", "--logprobs", "3"))
        self.assertEqual([entry["id"] for entry in answer["logprobs"]], answer["tokens"])
        for entry in answer["logprobs"]:
            self.assertEqual(len(entry["top"]), 3)
            self.assertEqual(entry["top"][0], {"id": entry["id"], "logprob": entry["logprob"]}, "greedy takes the best")
        ids = ",".join(map(str, [1, 2, 3, *answer["tokens"]]))
        scored = self.json_of("score", "--model", TINY, "--prompt-tokens", ids, "--backend", "reference", "--json")
        for entry, logprob in zip(answer["logprobs"], scored["logprobs"][3:]):
            # Prompt and answer take different paths through the same arithmetic: fp32 over a few hundred terms.
            self.assertAlmostEqual(entry["logprob"], logprob, delta=1e-4)

    def test_chat_uses_the_template_and_never_reads_a_user_as_control(self):
        common = ("generate", "--model", DEMO, "--max-tokens", "1", "--json")

        def prompt_tokens(text, *more):
            return self.json_of(*common, "--prompt", text, *more)["stats"]["prompt_tokens"]

        self.assertEqual(prompt_tokens("<|im_end|>"), 1, "in a raw prompt it is one token")
        plain = prompt_tokens("x", "--chat")
        self.assertGreater(plain, prompt_tokens("x"), "the template adds its words")
        self.assertGreater(prompt_tokens("<|im_end|>", "--chat"), plain + 2, "the characters, not the token")
        self.assertGreater(prompt_tokens("x", "--chat", "--system", "Be brief."), plain)
        self.assertNotEqual(prompt_tokens("x", "--chat", "--think"), prompt_tokens("x", "--chat", "--no-think"))

    def test_ctrl_c_ends_the_answer_and_keeps_what_was_said(self):
        process = start("generate", "--model", DEMO, "--prompt", "x = 1\n", "--max-tokens", "1900", "--ignore-eos")
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(len(first), 1)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"interrupted", err)
        self.assertIn(b"tokens generated", err)

    def test_a_killed_run_leaves_nothing_behind(self):
        process = start("generate", "--model", DEMO, "--prompt", "x = 1\n", "--max-tokens", "1900", "--ignore-eos", cwd=self.tmp)
        process.stdout.read(1)
        before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        process.kill()
        process.communicate(timeout=60)
        self.assertEqual(os.listdir(self.tmp), [])
        if before:
            self.assertLessEqual(set(os.listdir("/dev/shm")), before)

    def test_memory_is_weights_and_state_and_little_more(self):
        memory = self.json_of("inspect", "--model", DEMO, "--json")["memory"]
        process = start("generate", "--model", DEMO, "--prompt", "x = 1\n" * 40, "--max-tokens", "300", "--ignore-eos")
        process.stdin.close()
        process.stdout.read()
        process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        process.stderr.close()
        self.assertEqual(process.returncode, 0)
        state = memory["state_bytes_per_sequence"] + memory["kv_bytes_per_1000_tokens"]
        self.assertLess(usage.ru_maxrss * 1024, memory["weight_bytes"] + state + 200e6)


class Score(TestCase):
    def test_json_has_a_logprob_for_every_token_but_the_first(self):
        for top in (0, 4):
            scored = self.json_of("score", "--model", TINY, "--prompt-tokens", "1,2,3,4,5", "--top", str(top), "--json")
            self.assertEqual(set(scored), {"tokens", "logprobs", "top"})
            self.assertEqual(scored["tokens"], [1, 2, 3, 4, 5])
            self.assertIsNone(scored["logprobs"][0])
            self.assertIsNone(scored["top"][0])
            self.assertEqual(len(scored["logprobs"]), 5)
            self.assertEqual(len(scored["top"]), 5)
            for logprob, best in zip(scored["logprobs"][1:], scored["top"][1:]):
                self.assertLess(logprob, 0)
                self.assertEqual(len(best), top)
                self.assertEqual(best, sorted(best, key=lambda entry: (-entry["logprob"], entry["id"])))

    def test_all_of_the_vocabulary_has_mass_one(self):
        scored = self.json_of("score", "--model", TINY, "--prompt-tokens", "1,2", "--top", "100000", "--json")
        best = scored["top"][1]
        self.assertEqual(len(best), 512)
        self.assertAlmostEqual(sum(math.exp(entry["logprob"]) for entry in best), 1, delta=1e-5)
        self.assertEqual(next(entry["logprob"] for entry in best if entry["id"] == 2), scored["logprobs"][1])

    def test_windows_start_anew(self):
        common = ("score", "--model", TINY, "--json")
        parts = self.json_of(*common, "--prompt-tokens", "1,2,3,4,5,6", "--window", "3")["logprobs"]
        self.assertIsNone(parts[3])
        self.assertEqual(parts[3:], self.json_of(*common, "--prompt-tokens", "4,5,6")["logprobs"])

    def test_people_get_the_perplexity_of_a_text(self):
        run = tandem("score", "--model", DEMO, "--prompt", "import os\nimport sys\n")
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out, r"perplexity per token [0-9.]+\nbits per byte +[0-9.]+\n")


class Tokenize(TestCase):
    def test_ids_and_text_are_the_reference_tokenizers(self):
        goldens = json.loads((GOLDENS / "tokenizer.json").read_text())
        for golden in goldens["encode"][:12]:
            self.assertEqual(self.json_of("tokenize", "--model", DEMO, "--text", golden["text"], "--json"), {"ids": golden["ids"]})
        for golden in goldens["decode"][:12]:
            ids = ",".join(map(str, golden["ids"]))
            self.assertEqual(self.json_of("tokenize", "--model", DEMO, "--decode", ids, "--json"), {"text": golden["decoded"]})

    def test_special_strings_are_read_or_not(self):
        common = ("tokenize", "--model", DEMO, "--text", "a<|im_end|>", "--json")
        self.assertIn(8188, self.json_of(*common)["ids"])
        self.assertNotIn(8188, self.json_of(*common, "--plain")["ids"])
        text = self.json_of("tokenize", "--model", DEMO, "--decode", "64,8188", "--json", "--skip-special")["text"]
        self.assertNotIn("im_end", text)

    def test_people_see_each_token(self):
        run = tandem("tokenize", "--model", DEMO, "--text", "a\n<|im_end|>")
        self.assertEqual(run.code, 0, run)
        self.assertIn("\\n", run.out)
        self.assertIn("<|im_end|>  (special)", run.out)


class Bench(TestCase):
    COMMON = {"bench", "model", "backend", "threads", "commit"}

    def rows(self, bench, fields, *args):
        rows = self.json_of("bench", bench, "--rounds", "1", "--json", *args)
        self.assertIsInstance(rows, list)
        for row in rows:
            self.assertLessEqual(self.COMMON | fields, set(row))
            self.assertEqual(row["bench"], bench)
            if row["backend"].startswith("cuda"):
                self.assertIn(row["card"], row["backend"])
                self.assertGreater(min(row["sm_mhz"], row["memory_mhz"]), 0)
        return rows

    def test_decode(self):
        fields = {"batch", "context", "ms_per_step", "tokens_per_s", "bytes_per_step", "gb_per_s", "read_gb_per_s", "share_of_read"}
        rows = self.rows("decode", fields, "--model", TINY, "--batch", "1,3", "--context", "0,70", "--threads", "1,2")
        self.assertEqual([(r["threads"], r["batch"], r["context"]) for r in rows],
                         [(t, b, c) for t in (1, 2) for b in (1, 3) for c in (0, 70)])
        for row in rows:
            self.assertAlmostEqual(row["share_of_read"], row["gb_per_s"] / row["read_gb_per_s"], places=6)
            self.assertAlmostEqual(row["tokens_per_s"], 1e3 * row["batch"] / row["ms_per_step"], delta=1e-3 * row["tokens_per_s"])

    def test_decode_beside_a_busy_process_and_the_process_dies_with_it(self):
        rows = self.rows("decode", {"busy", "slowdown"}, "--model", TINY, "--busy", "1", "--threads", "1")
        self.assertEqual([row["busy"] for row in rows], [0, 1])
        process = start("bench", "decode", "--model", TINY, "--busy", "1", "--threads", "1", "--rounds", "1000")
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        alive = []
        while not alive and time.monotonic() < deadline:
            time.sleep(0.005)
            process.send_signal(signal.SIGSTOP)  # so that what is seen now is still there when it is killed
            alive = children_of(process.pid)
            if not alive:
                process.send_signal(signal.SIGCONT)
        self.assertTrue(alive, "no busy process appeared")
        process.kill()
        deadline = time.monotonic() + 10
        while any(is_alive(pid) for pid in alive) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse([pid for pid in alive if is_alive(pid)])

    def test_verify(self):
        rows = self.rows("verify", {"rows", "ms", "ratio_to_1"}, "--model", TINY, "--threads", "1")
        self.assertEqual([row["rows"] for row in rows], [1, 2, 4, 8, 16, 32])
        self.assertEqual(rows[0]["ratio_to_1"], 1)

    def test_prefill(self):
        fields = {"tokens", "tokens_per_s", "gflop_per_s", "gemm_gflop_per_s", "share_of_gemm"}
        rows = self.rows("prefill", fields, "--model", TINY, "--tokens", "64,130", "--threads", "1")
        self.assertEqual([row["tokens"] for row in rows], [64, 130])

    def test_kernels(self):
        fields = {"rows", "context", "block", "us", "bytes", "gb_per_s", "read_gb_per_s", "share_of_read"}
        rows = self.rows("kernels", fields, "--model", TINY, "--rows", "1,3", "--context", "70", "--threads", "1")
        blocks = ["delta inputs", "delta step", "delta output", "attention inputs", "attention", "attention output", "mlp", "head"]
        self.assertEqual([(r["rows"], r["block"]) for r in rows], [(n, b) for n in (1, 3) for b in blocks])
        for row in rows:
            self.assertGreater(min(row["us"], row["bytes"]), 0)
            self.assertAlmostEqual(row["gb_per_s"], row["bytes"] / row["us"] / 1e3, delta=1e-6 * row["gb_per_s"])

    def test_bandwidth(self):
        (row,) = self.rows("bandwidth", {"read_gb_per_s", "copy_gb_per_s"}, "--threads", "1")
        self.assertGreater(row["read_gb_per_s"], 0)
        self.assertEqual(row["backend"], "host")

    def test_bandwidth_of_the_memory_that_models_would_lie_in(self):
        (row,) = self.rows("bandwidth", {"read_gb_per_s", "copy_gb_per_s"}, "--threads", "1", "--backend", "auto")
        self.assertGreater(min(row["read_gb_per_s"], row["copy_gb_per_s"]), 0)

    def test_a_ledger_grows_by_a_line_per_row(self):
        ledger = self.tmp / "made" / "on demand" / "verify.jsonl"
        for n in (1, 2):
            self.rows("verify", set(), "--model", TINY, "--rows", "1", "--threads", "1", "--ledger", ledger)
            lines = ledger.read_text().splitlines()
            self.assertEqual(len(lines), n)
            self.assertLessEqual(self.COMMON | {"device", "time"}, set(json.loads(lines[-1])))

    def test_people_get_a_table(self):
        run = tandem("bench", "verify", "--model", TINY, "--rows", "1,2", "--threads", "1", "--rounds", "1")
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out, r"verify of .* on (cpu|cuda)/.*\n.*rows +ms +ratio_to_1")


class Others(TestCase):
    def test_inspect_tells_what_is_in_a_folder(self):
        report = self.json_of("inspect", "--model", DEMO, "--check", "--json")
        self.assertEqual(report["config"]["n_delta_layers"], 9)
        self.assertEqual(report["config"]["quantisation"]["bits"], 8)
        self.assertGreater(report["tensors"]["mtp"], 0)
        self.assertAlmostEqual(report["parameters"], 22.5e6, delta=0.1e6)
        self.assertEqual(report["tokenizer"]["n_tokens"], 8192)
        self.assertTrue(report["chat_template"])
        self.assertEqual(report["warnings"], [])
        run = tandem("inspect", "--model", TINY)
        self.assertEqual(run.code, 0, run)
        self.assertIn("no", run.out)

    def test_inspect_says_nothing_of_what_is_not_there(self):
        run = tandem("inspect", "--model", "/nope")
        self.expect_error(run, 1, "/nope")
        self.assertEqual(run.out, "")

    def test_inspect_tells_what_a_published_shape_needs(self):
        report = self.json_of("inspect", "--model", "synth:qwen3.5-0.8b", "--json")
        self.assertAlmostEqual(report["memory"]["weight_bytes"], 2 * report["parameters"], delta=1e6)
        self.assertGreater(report["memory"]["kv_bytes_per_1000_tokens"], 0)

    def test_quantize_makes_a_folder_that_runs(self):
        target = self.tmp / "4bit"
        report = self.json_of("quantize", "--model", TINY, "--output", target, "--bits", "4", "--group", "32", "--json")
        self.assertGreater(report["quantised"], 0)
        self.assertLess(report["output_bytes"], report["input_bytes"] / 4)
        answer = self.json_of("generate", "--model", target, "--prompt-tokens", "1,2,3", "--max-tokens", "4", "--json")
        self.assertEqual(len(answer["tokens"]), 4)
        header, _ = read_safetensors(next(target.glob("*.safetensors")))
        self.assertTrue(any(name.endswith(".scales") for name in header))

    def test_doctor_answers_for_this_machine(self):
        report = self.json_of("doctor", "--json")
        self.assertTrue(report["ok"])
        self.assertLessEqual({"processor", "backend", "cores", "memory", "huge pages", "bandwidth"},
                             {check["check"] for check in report["checks"]})

    def test_a_conversation_through_a_pipe(self):
        run = tandem("chat", "--model", DEMO, "--max-tokens", "6", stdin=b"write function add\n\nand another\n/exit\nnot read\n")
        self.assertEqual(run.code, 0, run)
        self.assertNotIn("> ", run.out)
        self.assertGreaterEqual(len(run.out.splitlines()), 2)
        alone = tandem("chat", "--model", DEMO, "--max-tokens", "6", stdin=b"write function add\n")
        self.assertTrue(run.out.startswith(alone.out), "the end of the input ends it too")

    def test_a_slash_word_that_is_no_command_is_not_for_the_model(self):
        run = tandem("chat", "--model", DEMO, "--max-tokens", "6", stdin=b"/help me\nwrite function add\n")
        self.expect_error(run, 1, "/help", "/clear", "/exit")
        self.assertEqual(run.out, "")
        for text in (b"/etc/hosts\n", b" /help\n"):
            self.assertEqual(tandem("chat", "--model", DEMO, "--max-tokens", "6", stdin=text).code, 0, text)

    def test_clear_forgets_a_conversation(self):
        common = ("chat", "--model", DEMO, "--max-tokens", "12")
        once = tandem(*common, stdin=b"write function add\n").out
        twice = tandem(*common, stdin=b"what does this code do\n/clear\nwrite function add\n")
        self.assertTrue(twice.out.endswith(once), twice)

    def test_ctrl_c_ends_an_answer_and_not_the_conversation(self):
        process = start("chat", "--model", DEMO, "--max-tokens", "1500", "--ignore-eos")
        process.stdin.write(b"write function add\n")
        process.stdin.flush()
        self.assertEqual(len(process.stdout.read(1)), 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(b"/exit\n", timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue(out.endswith(b"\n"))

    def test_version_names_the_commit(self):
        run = tandem("--version")
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out, r"^tandem \d+\.\d+\.\d+ \((unknown|[0-9a-f]{7,40}(-dirty)?)\)\n$")

    def test_help_has_examples(self):
        for command in ("generate", "chat", "score", "tokenize", "inspect", "quantize", "bench", "doctor"):
            run = tandem(command, "--help")
            self.assertEqual(run.code, 0, run)
            self.assertIn("Examples:", run.out)
            self.assertLessEqual(max(map(len, run.out.splitlines())), 100)
            self.assertIn(f"tandem {command}", run.out)
            self.assertEqual(tandem("help", command).out, run.out)
            self.assertIn(f"  {command} ", tandem("--help").out)
        for bench in ("decode", "verify", "prefill", "bandwidth", "speculate", "serve"):
            run = tandem("bench", bench, "--help")
            self.assertIn("Examples:", run.out)
            self.assertLessEqual(max(map(len, run.out.splitlines())), 100)


class Usage(TestCase):
    def test_wrong_usage_is_exit_code_2_and_names_the_flag(self):
        model = ("--model", TINY)
        prompt = ("--prompt-tokens", "1")
        cases = [
            (("nonsense",), "nonsense"),
            (("generate",), "--model"),
            (("generate", *model), "--prompt"),
            (("generate", *model, *prompt, "--prompt", "x"), "--prompt"),
            (("generate", *model, *prompt, "--frobnicate"), "--frobnicate"),
            (("generate", *model, *prompt, "stray"), "stray"),
            (("generate", *model, "--prompt-tokens", "1,x"), "--prompt-tokens"),
            (("generate", *model, "--prompt-tokens", "-1"), "--prompt-tokens"),
            (("generate", *model, *prompt, "--max-tokens", "abc"), "--max-tokens"),
            (("generate", *model, *prompt, "--max-tokens", "0"), "--max-tokens"),
            (("generate", *model, *prompt, "--max-tokens", "99999999999"), "--max-tokens"),
            (("generate", *model, *prompt, "--max-tokens"), "--max-tokens"),
            (("generate", *model, *prompt, "--temperature", "-1"), "--temperature"),
            (("generate", *model, *prompt, "--temperature", "nan"), "--temperature"),
            (("generate", *model, *prompt, "--top-p", "1.5"), "--top-p"),
            (("generate", *model, *prompt, "--seed", "-1"), "--seed"),
            (("generate", *model, *prompt, "--seed", "1", "--seed", "2"), "--seed"),
            (("generate", *model, *prompt, "--backend", "abacus"), "--backend"),
            (("generate", *model, *prompt, "--isa", "sse"), "--isa"),
            (("generate", *model, *prompt, "--delta", "open"), "--delta"),
            (("generate", *model, *prompt, "--threads", "0"), "--threads"),
            (("generate", *model, *prompt, "--drafter", "abacus"), "--drafter"),
            (("generate", *model, *prompt, "--prefill-chunk", "100"), "--prefill-chunk"),
            (("generate", *model, *prompt, "--chat"), "--chat"),
            (("generate", *model, *prompt, "--system", "x"), "--system"),
            (("generate", *model, *prompt, "--logprobs", "2"), "--logprobs"),
            (("generate", *model, "--prompt", "x", "--chat", "--think", "--no-think"), "--no-think"),
            (("generate", *model, *prompt, "--echo"), "--echo"),
            (("generate", *model, "--prompt", "x", "--echo", "--json"), "--echo"),
            (("inspect", *model, "--prompts", "x"), "--probe-mtp"),
            (("score", *model), "--prompt"),
            (("score", *model, *prompt, "--top", "-1"), "--top"),
            (("score", *model, *prompt, "--window", "1"), "--window"),
            (("tokenize", "--model", DEMO), "--text"),
            (("tokenize", "--model", DEMO, "--decode", ""), "--decode"),
            (("bench",), "decode"),
            (("bench", "sprint"), "sprint"),
            (("bench", "verify", *model, "--rows", "33"), "--rows"),
            (("bench", "prefill", *model, "--prefill-chunk", "65"), "--prefill-chunk"),
            (("quantize", *model, "--output", "x", "--bits", "7"), "--bits"),
            (("quantize", *model, "--output", "x", "--group", "48"), "--group"),
            (("inspect",), "--model"),
            (("doctor", "--loud"), "--loud"),
        ]
        for args, name in cases:
            with self.subTest(args=args):
                run = tandem(*args)
                self.expect_error(run, 2, name)
                self.assertEqual(run.out, "")
        self.assertEqual(tandem().code, 2)

    def test_a_value_may_begin_with_a_dash(self):
        run = tandem("tokenize", "--model", DEMO, "--text", "-x --y", "--json")
        self.assertEqual(run.code, 0, run)


class OutputLoss(TestCase):
    def test_a_full_disk_is_told(self):
        for args in (
            generate_tiny("--max-tokens", "2"),
            ("generate", "--model", DEMO, "--prompt", "x", "--max-tokens", "4"),
            ("score", "--model", TINY, "--prompt-tokens", "1,2"),
            ("tokenize", "--model", DEMO, "--text", "x"),
            ("inspect", "--model", TINY),
            ("generate", "--help"),
            ("--help",),
            ("--version",),
        ):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                self.expect_error(tandem(*args, stdout=full), 1, "standard output", "No space left")

    def test_a_reader_that_goes_away_ends_the_answer(self):
        process = start("generate", "--model", DEMO, "--prompt", "x = 1\n", "--max-tokens", "1900", "--ignore-eos")
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        process.stdin.close()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 1, err)
        self.assertIn(b"standard output", err)

    def test_a_ledger_that_cannot_be_written_is_told(self):
        (self.tmp / "file").write_text("")
        for ledger, reason in ((self.tmp, "Is a directory"), (self.tmp / "file" / "x", "directory")):
            run = tandem("bench", "verify", "--model", TINY, "--rows", "1", "--rounds", "1", "--ledger", ledger)
            self.expect_error(run, 1, f"--ledger {ledger}", reason)


def children_of(parent):
    """The living processes whose parent is `parent`."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry))
    return found


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
