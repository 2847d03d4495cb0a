"""Bad input gets an error that names the file, tensor or field, and exit code 1; never a crash, never a guess."""
import json
import shutil
import struct
import unittest

from harness import DEMO, TINY, TestCase, read_safetensors, tandem, write_safetensors


class Case(TestCase):
    def refuse(self, model, *words, inspect_as_well=True):
        """Both the subcommand that runs the model and the one that explains it refuse it and say why."""
        run = tandem("generate", "--model", model, "--prompt-tokens", "1,2,3", "--max-tokens", "2", "--json")
        self.expect_error(run, 1, *words)
        self.assertEqual(run.out, "")
        if inspect_as_well:
            self.expect_error(tandem("inspect", "--model", model, "--check"), 1, *words)

    def edit_config(self, model, **changes):
        path = model / "config.json"
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))

    def edit_header(self, change):
        """A copy of the tiny model whose safetensors header went through change(header)."""
        model = self.copy()
        path = model / "model.safetensors"
        header, data = read_safetensors(path)
        change(header)
        write_safetensors(path, header, data)
        return model


class Files(Case):
    def test_no_such_folder(self):
        self.refuse(self.tmp / "nowhere", "nowhere")

    def test_a_file_instead_of_a_folder(self):
        self.refuse(TINY / "config.json", "config.json")

    def test_an_empty_folder(self):
        self.refuse(self.tmp, "config.json")

    def test_no_weights(self):
        model = self.copy()
        (model / "model.safetensors").unlink()
        self.refuse(model, "safetensors")

    def test_a_truncated_file(self):
        model = self.copy()
        path = model / "model.safetensors"
        for keep in (0, 7, 100, path.stat().st_size - 1):
            with self.subTest(keep=keep):
                path.write_bytes((TINY / "model.safetensors").read_bytes()[:keep])
                self.refuse(model, "model.safetensors")

    def test_a_header_longer_than_the_file(self):
        model = self.copy()
        path = model / "model.safetensors"
        raw = path.read_bytes()
        for n in (len(raw), 2**63, 2**64 - 1):
            with self.subTest(n=n):
                path.write_bytes(struct.pack("<Q", n) + raw[8:])
                self.refuse(model, "model.safetensors")

    def test_a_header_that_is_no_json(self):
        model = self.copy()
        path = model / "model.safetensors"
        raw = path.read_bytes()
        path.write_bytes(raw[:8] + b"\xff" + raw[9:])
        self.refuse(model, "model.safetensors")

    def test_overlapping_tensors(self):
        def overlap(header):
            first, second = "lm_head.weight", "model.embed_tokens.weight"
            header[second]["data_offsets"] = header[first]["data_offsets"]

        self.refuse(self.edit_header(overlap), "model.safetensors", "overlap")

    def test_a_missing_shard(self):
        model = self.copy()
        header, _ = read_safetensors(model / "model.safetensors")
        weight_map = {name: "model.safetensors" for name in header if name != "__metadata__"}
        weight_map["lm_head.weight"] = "model-00002-of-00002.safetensors"
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        self.refuse(model, "model-00002-of-00002.safetensors")

    def test_a_broken_tokenizer(self):
        model = self.copy()
        (model / "tokenizer.json").write_text('{"model": 3}')
        self.refuse(model, "tokenizer.json")


class Tensors(Case):
    def test_a_wrong_shape(self):
        def swap(header):
            tensor = header["model.layers.0.mlp.gate_proj.weight"]
            tensor["shape"] = tensor["shape"][::-1]

        self.refuse(self.edit_header(swap), "model.layers.0.mlp.gate_proj.weight", "[128, 192]", "[192, 128]")

    def test_a_missing_tensor(self):
        def rename(header):
            header["something.else"] = header.pop("model.layers.1.mlp.down_proj.weight")

        self.refuse(self.edit_header(rename), "layers.1.mlp.down_proj")

    def test_a_dtype_that_holds_no_weights(self):
        def relabel(header):
            header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I32"

        self.refuse(self.edit_header(relabel), "model.layers.0.mlp.up_proj.weight", "I32")

    def test_quantize_refuses_what_could_not_be_loaded(self):
        name = "model.layers.1.mlp.down_proj.weight"
        changes = {
            "missing": lambda header: header.pop(name),
            "transposed": lambda header: header[name].update(shape=header[name]["shape"][::-1]),
            "no float": lambda header: header[name].update(dtype="I32"),
        }
        for what, change in changes.items():
            with self.subTest(what=what):
                model = self.edit_header(change)
                self.expect_error(tandem("quantize", "--model", model, "--output", self.tmp / "out"), 1, name)
                shutil.rmtree(model)
        model = self.copy()
        for fields, word in (({"vocab_size": 1024}, "embed_tokens"), ({"num_hidden_layers": 5}, "layer")):
            with self.subTest(fields=fields):
                shutil.copy(TINY / "config.json", model)
                self.edit_config(model, **fields)
                self.expect_error(tandem("quantize", "--model", model, "--output", self.tmp / "out"), 1, word)
        shutil.copy(TINY / "config.json", model)
        (model / "tokenizer.json").write_text("garbage")
        self.expect_error(tandem("quantize", "--model", model, "--output", self.tmp / "out"), 1, "tokenizer.json")
        self.assertEqual([p.name for p in self.tmp.iterdir() if p.name.startswith("out")], [])

    def damage(self, source, name, value):
        """A copy of a model whose tensor `name` begins with the bytes `value`."""
        model = self.tmp / "damaged"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(source, model)
        header, data = read_safetensors(model / "model.safetensors")
        begin, _ = header[name]["data_offsets"]
        write_safetensors(model / "model.safetensors", header, data[:begin] + value + data[begin + len(value) :])
        return model

    def test_one_bad_row_of_the_embedding_spoils_no_score_in_silence(self):
        """The logit of one token is NaN or infinite; those of the tokens scored are sound."""
        for value in (b"\xc0\x7f", b"\x80\x7f", b"\x80\xff"):
            with self.subTest(value=value):
                model = self.damage(DEMO, "language_model.model.embed_tokens.scales", value)
                run = tandem("score", "--model", model, "--prompt", "hello world", "--json")
                self.expect_error(run, 1, "not finite", "inspect --check")
                self.assertEqual(run.out, "")

    def test_the_head_for_multi_token_prediction_is_checked_too(self):
        name = "language_model.mtp.layers.0.mlp.down_proj.scales"
        self.expect_error(tandem("inspect", "--model", self.damage(DEMO, name, b"\xc0\x7f"), "--check"), 1, name)
        model = self.tmp / "damaged"
        header, data = read_safetensors(DEMO / "model.safetensors")
        header["something.else"] = header.pop(name)
        write_safetensors(model / "model.safetensors", header, data)
        (model / "model.safetensors.index.json").unlink()
        self.expect_error(tandem("inspect", "--model", model, "--check"), 1, "mtp.layers.0.mlp.down_proj")

    def test_values_that_are_no_numbers_are_named(self):
        name = "model.layers.0.mlp.up_proj.weight"
        model = self.damage(TINY, name, struct.pack("<f", float("nan")))
        run = tandem("inspect", "--model", model, "--check")
        self.expect_error(run, 1, name, "not finite")
        run = tandem("generate", "--model", model, "--prompt-tokens", "1,2", "--max-tokens", "2")
        self.assertIn("warning: ", run.err)
        self.assertIn(name, run.err)
        self.assertEqual(run.code, 1, "no token can be chosen from such logits")
        run = tandem("score", "--model", model, "--prompt-tokens", "1,2", "--json")
        self.expect_error(run, 1, "not finite")


class Config(Case):
    def test_an_unknown_model_type(self):
        model = self.copy()
        self.edit_config(model, model_type="gpt_neox")
        self.refuse(model, "config.json", "model_type", "gpt_neox", "qwen3_5")

    def test_no_json(self):
        model = self.copy()
        (model / "config.json").write_text("{")
        self.refuse(model, "config.json")

    def test_sizes_out_of_range(self):
        model = self.copy()
        for field, value in (("hidden_size", -1), ("num_hidden_layers", 10**12), ("head_dim", "wide"), ("vocab_size", 0)):
            with self.subTest(field=field):
                shutil.copy(TINY / "config.json", model)
                self.edit_config(model, **{field: value})
                self.refuse(model, "config.json", field)

    def test_a_quantisation_that_is_not_read(self):
        model = self.copy(DEMO)
        for block in ({"group_size": 64, "bits": 7}, {"group_size": 16, "bits": 4}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}):
            with self.subTest(block=block):
                shutil.copy(DEMO / "config.json", model)
                self.edit_config(model, quantization=block, quantization_config=block)
                self.refuse(model, "config.json", "quantization")
        shutil.copy(DEMO / "config.json", model)
        self.edit_config(model, quantization=None, quantization_config={"quant_method": "gptq", "bits": 4})
        self.refuse(model, "config.json", "gptq")


class Requests(Case):
    def test_a_prompt_that_is_not_utf8(self):
        run = tandem("generate", "--model", DEMO, "--prompt", b"abc\xff def", "--json")
        self.expect_error(run, 1, "prompt", "3")
        file = self.tmp / "latin1.txt"
        file.write_bytes(b"caf\xe9")
        for command in (("score", "--file"), ("tokenize", "--file"), ("generate", "--prompt-file")):
            self.expect_error(tandem(command[0], "--model", DEMO, command[1], file), 1, "UTF-8", "3")

    def test_a_prompt_longer_than_the_context(self):
        ids = ",".join(["5"] * 2048)
        self.expect_error(tandem("generate", "--model", DEMO, "--prompt-tokens", ids), 1, "2048", "context")
        self.expect_error(tandem("generate", "--model", DEMO, "--prompt-tokens", "1,2,3,4", "--context", "4"), 1, "--context")
        self.expect_error(tandem("generate", "--model", DEMO, "--prompt-tokens", "1", "--context", "4096"), 1, "--context", "2048")
        self.expect_error(tandem("score", "--model", DEMO, "--prompt-tokens", ids + ",5"), 1, "2049", "2048")

    def test_an_empty_prompt(self):
        self.expect_error(tandem("generate", "--model", DEMO, "--prompt", ""), 1, "empty")

    def test_a_token_outside_the_vocabulary(self):
        self.expect_error(tandem("generate", "--model", TINY, "--prompt-tokens", "1,512"), 1, "512")
        self.expect_error(tandem("score", "--model", TINY, "--prompt-tokens", "1,512"), 1, "512")
        self.expect_error(tandem("tokenize", "--model", DEMO, "--decode", "1,99999"), 1, "99999")

    def test_text_without_a_tokenizer(self):
        self.expect_error(tandem("generate", "--model", TINY, "--prompt", "x"), 1, "tokenizer.json", "--prompt-tokens")
        self.expect_error(tandem("generate", "--model", TINY, "--prompt", "x", "--chat"), 1, "tokenizer.json")
        self.expect_error(tandem("score", "--model", TINY, "--prompt", "x"), 1, "tokenizer.json")
        self.expect_error(tandem("chat", "--model", TINY), 1, "tokenizer.json")
        self.expect_error(tandem("generate", "--model", TINY, "--prompt-tokens", "1", "--stop", "x"), 1, "--stop")

    def test_a_prompt_file_that_is_not_there(self):
        self.expect_error(tandem("generate", "--model", DEMO, "--prompt-file", self.tmp / "none.txt"), 1, "none.txt", "No such file")

    def test_more_memory_than_there_is(self):
        run = tandem("generate", "--model", "synth:qwen3.5-397b-a17b", "--prompt-tokens", "1", timeout=30)
        self.expect_error(run, 1, "weights", "GB")

    def test_an_unknown_synthetic_model(self):
        for name in ("synth:gpt-9", "synth:qwen3.5-0.8b@7", "synth:qwen3.5-0.8b,layers=0", "synth:"):
            self.expect_error(tandem("generate", "--model", name, "--prompt-tokens", "1"), 1, "synth:")

    def test_quantize_refuses_what_it_would_spoil(self):
        self.expect_error(tandem("quantize", "--model", DEMO, "--output", self.tmp / "out"), 1, "quantised")
        (self.tmp / "full").mkdir()
        (self.tmp / "full" / "precious").write_text("x")
        self.expect_error(tandem("quantize", "--model", TINY, "--output", self.tmp / "full"), 1, "full")
        self.assertEqual((self.tmp / "full" / "precious").read_text(), "x")


if __name__ == "__main__":
    unittest.main()
