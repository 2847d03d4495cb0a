"""Speculation from the command line: the same tokens whatever drafts, figures that add up, errors before any token."""
import json
import re
import shutil
import unittest

from harness import DEMO, ROOT, TINY, TestCase, read_safetensors, tandem, write_safetensors

PROMPT = ("--prompt", "def read_lines(path):\n    with open(path) as f:\n")
DFLASH = ROOT / "models" / "tandem-demo-dflash"


class Same(TestCase):
    def answer(self, *args):
        return self.json_of("generate", "--model", DEMO, *PROMPT, "--max-tokens", "60", "--ignore-eos", "--json", *args)

    def test_any_drafter_gives_the_answer_of_none(self):
        for sampling in ((), ("--temperature", "0.8", "--seed", "3", "--repetition-penalty", "1.1")):
            plain = self.answer("--drafter", "none", *sampling)
            self.assertNotIn("speculation", plain["stats"])
            for drafter in (("auto",), ("dflash", "--draft-length", "fixed:15"), ("dflash", "--tree", "20"),
                            ("mtp", "--draft-length", "fixed:4"), ("mtp", "--draft-length", "kod"), ("ngram",)):
                with self.subTest(sampling=sampling, drafter=drafter):
                    answer = self.answer("--drafter", *drafter, *sampling)
                    self.assertEqual(answer["tokens"], plain["tokens"])
                    self.assertEqual(answer["text"], plain["text"])

    def test_a_stop_string_inside_a_draft_ends_the_answer_at_the_same_token(self):
        text = self.answer("--drafter", "none")["text"]
        for stop in (text[25:28], text[70:72]):
            plain = self.answer("--drafter", "none", "--stop", stop)
            self.assertEqual(plain["finish_reason"], "stop")
            for drafter in (("dflash", "--draft-length", "fixed:15"), ("mtp", "--draft-length", "fixed:7")):
                answer = self.answer("--drafter", *drafter, "--stop", stop)
                for key in ("tokens", "text", "finish_reason"):
                    self.assertEqual(answer[key], plain[key], (stop, drafter))
                self.assertEqual(answer["stats"]["generated_tokens"], len(answer["tokens"]))

    def test_logprobs_are_the_same(self):
        plain = self.answer("--drafter", "none", "--logprobs", "3")["logprobs"]
        self.assertEqual(self.answer("--drafter", "dflash", "--logprobs", "3")["logprobs"], plain)

    def test_figures_add_up(self):
        answer = self.answer("--drafter", "mtp", "--draft-length", "fixed:3")
        stats = answer["stats"]["speculation"]
        self.assertEqual(set(stats), {"drafter", "rounds", "drafted", "accepted", "tokens_per_round",
                                      "acceptance_by_position", "speed_up", "draft_s", "verify_s", "other_s"})
        self.assertEqual(stats["drafter"], "mtp")
        self.assertAlmostEqual(stats["tokens_per_round"] * stats["rounds"], len(answer["tokens"]) - 1)
        self.assertGreater(stats["accepted"], 10)
        self.assertGreaterEqual(stats["drafted"], stats["accepted"])
        self.assertEqual(len(stats["acceptance_by_position"]), 3)
        spent = stats["draft_s"] + stats["verify_s"] + stats["other_s"]
        self.assertLess(abs(spent - answer["stats"]["decode_s"]), 0.1 * answer["stats"]["decode_s"])
        run = tandem("generate", "--model", DEMO, *PROMPT, "--max-tokens", "20", "--drafter", "mtp")
        self.assertIn("mtp: ", run.err)
        self.assertIn("drafts accepted", run.err)

    def test_the_probe_tells_which_hidden_states_the_head_was_made_for(self):
        prompts = self.tmp / "prompts.jsonl"
        prompts.write_text('{"prompt": "def add(a, b):\\n"}\n{"prompt_tokens": [1, 2, 3]}\n')
        args = ("inspect", "--model", DEMO, "--probe-mtp", "--prompts", prompts)
        probe = self.json_of(*args, "--json")["mtp_probe"]
        self.assertEqual(probe["prompts"], 2)
        self.assertEqual(probe["current"], {"input": "post_norm", "chain": "post_norm"})
        self.assertEqual(probe["best"], probe["current"])
        self.assertEqual(len(probe["trials"]), 4)
        for trial in probe["trials"]:
            self.assertEqual(len(trial["acceptance"]), 3)
        self.assertRegex(tandem(*args).out, r"post_norm +pre_norm +[0-9.]+%")
        self.expect_error(tandem("inspect", "--model", TINY, "--probe-mtp", "--prompts", prompts), 1, "tokenizer")
        prompts.write_text('{"prompt_tokens": [1, 2, 3]}\n')
        self.expect_error(tandem("inspect", "--model", TINY, "--probe-mtp", "--prompts", prompts), 1,
                          "no multi-token-prediction head")
        prompts.write_text('{"text": 1}\n')
        self.expect_error(tandem(*args), 1, f"{prompts}:1", "prompt")

    def test_a_draft_vocabulary_changes_no_token(self):
        file, text = self.tmp / "v.json", self.tmp / "sample.py"
        text.write_text("".join(p.read_text() for p in sorted((ROOT / "tests" / "e2e").glob("*.py"))))
        make = ("draft-vocab", "--model", DEMO, "--text", text, "--output", file)
        self.expect_error(tandem(*make, "--size", "700"), 1, "700", "97%")
        self.expect_error(tandem(*make, "--size", "9000"), 1, "9000", "8192")
        self.assertFalse(file.exists(), "one that covers too little is not written")
        report = self.json_of(*make, "--size", "6000", "--json")
        self.assertGreaterEqual(report["coverage"], 0.97)
        self.assertEqual(len(json.loads(file.read_text())["ids"]), 6000)
        plain = self.answer("--drafter", "none")
        drafted = self.answer("--drafter", "mtp", "--draft-vocab", file, "--draft-length", "fixed:3")
        self.assertEqual(drafted["tokens"], plain["tokens"])
        self.assertGreater(drafted["stats"]["speculation"]["accepted"], 10)
        self.expect_error(tandem("generate", "--model", DEMO, *PROMPT, "--drafter", "dflash", "--draft-vocab", file), 1,
                          "--draft-vocab", "mtp")

    def test_the_line_says_when_drafting_did_not_pay(self):
        prompt = ("generate", "--model", DEMO, "--prompt", "def f(x):", "--max-tokens", "40", "--ignore-eos", "--drafter")
        self.assertNotIn("did not pay", tandem(*prompt, "mtp", "--draft-length", "fixed:3").err)
        # Nothing is drawn twice at this temperature, so lookup finds nothing.
        run = tandem(*prompt, "ngram", "--temperature", "1000", "--top-p", "1", "--top-k", "0", "--seed", "1")
        self.assertRegex(run.err, "did not pay for this text")
        shares = [int(x) for x in re.findall(r"(\d+)% (?:of the time verifying|drafting|the rest)", run.err)]
        self.assertEqual((len(shares), sum(shares)), (3, 100))

    def test_a_simulation_says_so(self):
        model = ("--model", "synth:qwen3.5-0.8b@4,layers=4", "--prompt-tokens", "1,2,3", "--max-tokens", "8")
        answer = self.json_of("generate", *model, "--json", "--drafter", "simulated:0.9", "--draft-length", "fixed:3")
        self.assertTrue(answer["stats"]["speculation"]["simulated"])
        self.assertIn("by lot", tandem("generate", *model, "--drafter", "simulated:0.9").err)

    def test_bench_compares_with_plain_decoding(self):
        prompts = self.tmp / "two.jsonl"
        prompts.write_text('{"prompt": "import os\\n"}\n\n{"prompt_tokens": [5, 6, 7]}\n')
        rows = self.json_of("bench", "speculate", "--model", DEMO, "--prompts", prompts, "--max-tokens", "12", "--rounds",
                            "1", "--drafter", "ngram", "--drafter", "mtp", "--json")
        self.assertEqual([r["drafter"] for r in rows], ["ngram", "mtp"])
        for row in rows:
            self.assertEqual((row["bench"], row["prompt_class"], row["identical"]), ("speculate", "two", True))
            self.assertGreater(row["tokens_per_s"], 0)
            self.assertAlmostEqual(row["efficiency"], row["speed_up"] / row["tokens_per_round"])
        for text, word in (("", "no prompts"), ("{", ":1:"), ('{"prompt": 3}', '"prompt"'), ("[1]", "object")):
            prompts.write_text(text)
            self.expect_error(tandem("bench", "speculate", "--model", DEMO, "--prompts", prompts), 1, "two.jsonl", word)


class Inspect(TestCase):
    def test_inspect_knows_a_drafter_from_a_model(self):
        report = self.json_of("inspect", "--model", DFLASH, "--check", "--json")
        self.assertEqual(report["drafter"]["target"], str(DEMO))
        self.assertEqual(report["drafter"]["target_layers"], [1, 5, 9])
        self.assertNotIn("memory", report)
        run = tandem("inspect", "--model", DFLASH, "--check")
        self.assertIn("DFlash drafter", run.out)
        self.assertIn("every tensor was read", run.out)
        self.assertNotIn("runs on", run.out)
        shutil.copytree(DFLASH, self.tmp / "model-dflash")  # beside a model that it does not fit
        self.copy(TINY)
        self.assertIn("hidden_size", tandem("inspect", "--model", self.tmp / "model-dflash").out)
        (drafter,) = self.json_of("inspect", "--model", self.tmp / "model", "--json")["drafters"]
        self.assertFalse(drafter["usable"])

    def test_inspect_names_the_drafters_of_a_model(self):
        drafters = self.json_of("inspect", "--model", DEMO, "--json")["drafters"]
        self.assertEqual([(d["name"], d["usable"]) for d in drafters], [("mtp", True), ("dflash", True)])
        self.assertIn("--drafter mtp", tandem("inspect", "--model", DEMO).out)


class Refused(TestCase):
    """A drafter that cannot work is refused when it is loaded, before any token."""

    def refuse(self, *args, code=1, words=(), model=DEMO):
        run = tandem("generate", "--model", model, "--prompt-tokens", "1,2", "--max-tokens", "2", *args)
        self.expect_error(run, code, *words)
        self.assertEqual(run.out, "")

    def drafter(self, **changes):
        """A copy of the drafter whose config.json has other values; None takes a field out."""
        folder = self.tmp / "drafter"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(DFLASH, folder)
        config = json.loads((folder / "config.json").read_text())
        for key, value in changes.items():
            target = config["dflash_config"] if key in ("mask_token_id", "target_layer_ids") else config
            if value is None:
                del target[key]
            else:
                target[key] = value
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def test_inspect_names_the_tensor_that_a_drafter_lacks(self):
        folder = self.drafter()
        header, data = read_safetensors(folder / "model.safetensors")
        del header["layers.1.mlp.up_proj.weight"]
        write_safetensors(folder / "model.safetensors", header, data)
        run = tandem("inspect", "--model", folder, "--check")
        self.expect_error(run, 1, "layers.1.mlp.up_proj.weight")
        self.assertIn("DFlash drafter", run.out)

    def test_names_and_lengths(self):
        self.refuse("--drafter", "eagle", code=2, words=("--drafter", "eagle", "dflash"))
        self.refuse("--drafter", "simulated:2", code=2, words=("--drafter", "(0, 1]"))
        for length in ("fixed:0", "fixed:32", "fixed:", "long"):
            self.refuse("--draft-length", length, code=2, words=("--draft-length", length))
        self.refuse("--draft-length", "fixed:16", "--drafter", "dflash", words=("fixed:16", "at most 15"))
        for rule in ("strict", "lenient:0", "lenient:2"):
            self.refuse("--accept", rule, code=2, words=("--accept", rule))
        self.refuse("--tree", "32", code=2, words=("--tree",))
        self.refuse("--tree", "5", "--drafter", "mtp", words=("--tree", "mtp", "dflash"))
        self.refuse("--draft-bits", "3", code=2, words=("--draft-bits", "3"))

    def test_missing_drafters(self):
        self.refuse("--drafter", "dflash", "--draft", "/nonexistent", words=("/nonexistent", "no such folder"))
        self.refuse("--drafter", "dflash", words=("no such folder", "--draft"), model=TINY)
        self.refuse("--drafter", "mtp", words=("no multi-token-prediction head",), model=TINY)
        self.refuse("--drafter", "mtp", "--draft", DFLASH, words=("--draft", "leave one"))
        self.refuse("--draft", DEMO, words=("config.json",))

    def test_a_drafter_of_another_model(self):
        self.refuse("--draft", self.drafter(vocab_size=9000), words=("vocab_size", "9000", "8192"))
        self.refuse("--draft", self.drafter(num_target_layers=36), words=("num_target_layers", "36", "12"))
        self.refuse("--draft", self.drafter(target_layer_ids=[1, 5, 12], num_target_layers=None),
                    words=("target_layer_ids", "12"))
        self.refuse("--draft", self.drafter(target_layer_ids=[1, 5]), words=("fc.weight", "1152", "768"))
        self.refuse("--draft", self.drafter(mask_token_id=8192), words=("mask_token_id", "8192"))
        self.refuse("--draft", self.drafter(mask_token_id=None), words=("mask_token_id",))
        self.refuse("--draft", self.drafter(block_size=1), words=("block_size", "1"))
        self.refuse("--draft", self.drafter(architectures=["DFlash9DraftModel"]), words=("architectures", "DFlash9DraftModel"))
        self.refuse("--draft", DFLASH, words=("hidden_size",), model=TINY)

    def test_damaged_weights(self):
        folder = self.drafter()
        header, data = read_safetensors(folder / "model.safetensors")
        del header["layers.1.mlp.up_proj.weight"]
        write_safetensors(folder / "model.safetensors", header, data)
        self.refuse("--draft", folder, words=("layers.1.mlp.up_proj.weight",))


if __name__ == "__main__":
    unittest.main(verbosity=2)
