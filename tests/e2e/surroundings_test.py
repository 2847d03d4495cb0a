"""Closed streams, signals, limits and odd kinds of file: an answer or a message and an exit code, nothing left behind."""
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import BINARY, DEMO, TINY, TestCase, read_safetensors, start, tandem, write_safetensors


def with_closed(fd, *args, stdin=b""):
    """The finished run of the binary with a standard descriptor closed; what it wrote to it is None."""
    return subprocess.run([BINARY, *args], input=None if fd == 0 else stdin, preexec_fn=lambda: os.closerange(fd, fd + 1), timeout=60,
                          stdout=None if fd == 1 else subprocess.PIPE, stderr=None if fd == 2 else subprocess.PIPE, check=False)


class Streams(TestCase):
    answer = ("generate", "--model", DEMO, "--prompt", "a", "--max-tokens", "4")

    def test_nobody_reads_standard_error(self):
        expected = tandem(*self.answer).out
        run = with_closed(2, *self.answer)
        self.assertEqual((run.returncode, run.stdout.decode()), (0, expected))
        with open("/dev/full", "wb") as full:
            run = subprocess.run([BINARY, *self.answer], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full, timeout=60,
                                 check=False)
        self.assertEqual((run.returncode, run.stdout.decode()), (0, expected))

    def test_standard_output_or_input_is_closed(self):
        run = with_closed(1, *self.answer)
        self.assertEqual(run.returncode, 1)
        self.assertIn(b"standard output could not be written", run.stderr)
        run = with_closed(0, "generate", "--model", DEMO, "-")
        self.assertEqual(run.returncode, 1)
        self.assertIn(b"standard input", run.stderr)

    def test_no_file_of_ours_takes_the_place_of_a_closed_stream(self):
        """A shard that got the number of standard error would have messages written into it."""
        chat = subprocess.Popen([BINARY, "chat", "--model", DEMO, "--max-tokens", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                preexec_fn=lambda: os.closerange(2, 3))
        self.addCleanup(chat.stdout.close)
        chat.stdin.write(b"hi\n")
        chat.stdin.flush()
        chat.stdout.readline()
        self.assertEqual(os.readlink(f"/proc/{chat.pid}/fd/2"), "/dev/null")
        chat.communicate(timeout=60)

    def test_quantize_writes_the_same_bytes_with_streams_closed(self):
        options = ("quantize", "--model", TINY, "--bits", "4", "--group", "32", "--output")
        self.assertEqual(tandem(*options, self.tmp / "usual").code, 0)
        self.assertEqual(with_closed(2, *options, self.tmp / "closed").returncode, 0)
        for file in (self.tmp / "usual").iterdir():
            self.assertEqual(file.read_bytes(), (self.tmp / "closed" / file.name).read_bytes(), file.name)


class Signals(TestCase):
    def interrupt(self, process, number):
        """Sends the signal to a process that said it is at work; (exit code, standard output, standard error)."""
        self.assertIn(b"%", process.stderr.readline())  # the first line of progress
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def wait_until_watched(self, process, number):
        """Waits until the process has a handler for the signal: it is at work."""
        for _ in range(6000):
            with open(f"/proc/{process.pid}/status") as status:
                caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
            if caught >> (number - 1) & 1:
                return
            time.sleep(0.01)
        self.fail("the signal is never watched")

    def test_quantize_takes_its_unfinished_folder_away(self):
        model = self.tmp / "model"
        self.large_model(model)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number=number):
                process = start("quantize", "--model", model, "--output", self.tmp / "out", "--threads", "1")
                code, out, err = self.interrupt(process, number)
                self.assertEqual((code, out), (130, b""), err)
                self.assertIn(b"interrupted", err)
                self.assertEqual(os.listdir(self.tmp), ["model"])

    def test_score_ends_at_once_and_prints_no_score(self):
        ids = ",".join(["5"] * 2000)
        process = start("score", "--model", DEMO, "--prompt-tokens", ids, "--backend", "reference", "--prefill-chunk", "64")
        code, out, err = self.interrupt(process, signal.SIGINT)
        self.assertEqual((code, out), (130, b""), err)
        self.assertIn(b"interrupted", err)

    def test_generate_json_interrupted_prints_no_json_and_says_so(self):
        ids = ",".join(["5"] * 100)
        process = start("generate", "--model", DEMO, "--prompt-tokens", ids, "--max-tokens", "1900", "--ignore-eos", "--isa", "portable",
                        "--json")
        self.wait_until_watched(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (130, b""), err)
        self.assertIn(b"no JSON", err)

    def test_sigterm_ends_a_chat_and_not_just_the_answer(self):
        process = start("chat", "--model", DEMO, "--max-tokens", "1500", "--ignore-eos")
        process.stdin.write(b"write function add\n")
        process.stdin.flush()
        self.assertEqual(len(process.stdout.read(1)), 1)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 130)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()

    def test_a_limit_on_file_size_is_an_error_that_leaves_nothing(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        run = subprocess.run([BINARY, "quantize", "--model", TINY, "--output", self.tmp / "out", "--bits", "4", "--group", "32"],
                             preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(run.returncode, 1, run)
        self.assertIn(b"File too large", run.stderr)
        self.assertEqual(os.listdir(self.tmp), [])

    def large_model(self, folder):
        """A model whose embedding alone takes seconds to quantise: zeros, in a file without blocks."""
        shutil.copytree(TINY, folder)
        config = json.loads((folder / "config.json").read_text())
        rows, columns = 1_000_000, config["hidden_size"]
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
        header, data = read_safetensors(folder / "model.safetensors")
        end = len(data)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [end, end + rows * columns * 2]}
            end = header[name]["data_offsets"][1]
        write_safetensors(folder / "model.safetensors", header, data)
        with open(folder / "model.safetensors", "r+b") as file:
            file.truncate(file.seek(0, os.SEEK_END) + end - len(data))


class FileKinds(TestCase):
    def test_a_named_pipe_in_place_of_a_file_is_refused_at_once(self):
        model = self.copy()
        for name in ("config.json", "model.safetensors"):
            with self.subTest(name=name):
                (model / name).rename(self.tmp / "kept")
                os.mkfifo(model / name)
                self.expect_error(tandem("inspect", "--model", model, timeout=20), 1, name, "not a regular file")
                (self.tmp / "kept").replace(model / name)

    def test_an_optional_file_that_is_broken_is_not_taken_for_absent(self):
        model = self.copy(DEMO)
        usual = tandem("generate", "--model", model, "--chat", "--prompt", "hi", "--max-tokens", "3")
        self.assertEqual(usual.code, 0, usual)
        for name in ("generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"):
            for target in ("nowhere", name):  # a link to nothing, a link to itself
                with self.subTest(name=name, target=target):
                    kept = (model / name).read_bytes() if (model / name).exists() else None
                    (model / name).unlink(missing_ok=True)
                    (model / name).symlink_to(target)
                    run = tandem("generate", "--model", model, "--chat", "--prompt", "hi", "--max-tokens", "3")
                    self.expect_error(run, 1, name)
                    (model / name).unlink()
                    if kept is not None:
                        (model / name).write_bytes(kept)

    def test_quantize_copies_all_files_or_says_why_not(self):
        model = self.copy()
        for make in (lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")):
            make(model / "merges.txt")
            self.expect_error(tandem("quantize", "--model", model, "--output", self.tmp / "out", "--group", "32"), 1, "merges.txt")
            self.assertEqual(os.listdir(self.tmp), ["model"])
            if (model / "merges.txt").is_symlink():
                (model / "merges.txt").unlink()
            else:
                (model / "merges.txt").rmdir()

    def test_an_output_that_cannot_be_replaced_is_refused_at_the_start(self):
        (self.tmp / "empty").mkdir()
        (self.tmp / "link").symlink_to("empty")
        (self.tmp / "dangling").symlink_to("nowhere")
        for output, word in ((".", "name"), ("empty/..", "name"), ("link", "symbolic link"), ("dangling", "symbolic link"),
                             ("/proc", "mounted"), ("/dev/null", "not a folder")):
            with self.subTest(output=output):
                run = tandem("quantize", "--model", TINY, "--output", output, "--group", "32", cwd=self.tmp)
                self.expect_error(run, 1, output, word)
        run = tandem("quantize", "--model", TINY, "--output", "empty", "--group", "32", cwd=self.tmp)
        self.assertEqual(run.code, 0, run)

    def test_a_name_that_the_system_refuses_is_an_ordinary_error(self):
        (self.tmp / "loop").symlink_to("loop")
        for name, word in (("x" * 5000, "too long"), (str(self.tmp / "loop"), "symbolic link"), ("", "name")):
            for command in (("generate", "--prompt", "a"), ("inspect",), ("tokenize", "--text", "a"), ("quantize", "--output", "out")):
                with self.subTest(name=name[:20], command=command[0]):
                    run = tandem(command[0], "--model", name, *command[1:], cwd=self.tmp)
                    self.assertIn(run.code, (1, 2), run)
                    self.assertIn(word, run.err[-500:])
                    self.assertNotIn("unexpected", run.err)

    def test_names_and_messages_from_files_do_not_drive_the_terminal(self):
        model = self.copy(DEMO)
        (model / "chat_template.jinja").write_text("{{ raise_exception('\x1b[31mred\x07' + 'x' * 1000000) }}")
        run = tandem("generate", "--model", model, "--chat", "--prompt", "hi")
        self.expect_error(run, 1, "\\x1b[31mred\\x07")
        self.assertNotIn("\x1b", run.err)
        self.assertLess(len(run.err), 10_000)
        (model / "\x1b[2Jname").write_text("")
        run = tandem("inspect", "--model", model)
        self.assertNotIn("\x1b", run.out)
        self.assertIn("\\x1b[2Jname", run.out)

    def test_end_tokens_that_cannot_end_anything_are_warned_of(self):
        model = self.copy(DEMO)
        for name, value, words in (("config.json", 99999, ("config.json", "99999")),
                                   ("generation_config.json", [99999, 8186], ("generation_config.json", "99999"))):
            with self.subTest(name=name):
                text = (model / name).read_text()
                (model / name).write_text(json.dumps(json.loads(text) | {"eos_token_id": value}))
                run = tandem("generate", "--model", model, "--prompt", "a", "--max-tokens", "2")
                self.assertEqual(run.code, 0, run)
                for word in ("warning: ", "vocabulary") + words:
                    self.assertIn(word, run.err)
                (model / name).write_text(text)
        config = json.loads((model / "tokenizer_config.json").read_text()) | {"eos_token": "<|nothing|>"}
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        run = tandem("generate", "--model", model, "--prompt", "a", "--max-tokens", "2")
        self.assertIn("<|nothing|>", run.err)

    def test_one_end_of_input_on_a_terminal_is_enough(self):
        for args in (("generate", "-", "--max-tokens", "2"), ("tokenize", "-f", "-")):
            with self.subTest(args=args):
                main, side = pty.openpty()
                process = subprocess.Popen([BINARY, args[0], "--model", DEMO, *args[1:]], stdin=side, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE)
                os.close(side)
                os.write(main, b"def f\n\x04")
                _, err = process.communicate(timeout=30)
                self.assertEqual(process.returncode, 0, err)
                os.close(main)

    def test_penalties_of_the_checkpoint_count_for_greedy_answers(self):
        model = self.copy(DEMO)
        common = ("--prompt", "def f(n):", "--max-tokens", "30")
        given = tandem("generate", "--model", model, *common, "--repetition-penalty", "1.8").out
        self.assertNotEqual(tandem("generate", "--model", model, *common).out, given)
        path = model / "generation_config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"do_sample": False, "repetition_penalty": 1.8}))
        self.assertEqual(tandem("generate", "--model", model, *common).out, given)
        self.assertIn("greedy, repetition penalty 1.8", tandem("inspect", "--model", model).out)


class Usage(TestCase):
    def test_messages_name_the_flag_and_the_limit(self):
        answer = ("generate", "--model", DEMO, "--prompt", "a")
        for more, words in ((("--temperature", "1e308"), ("--temperature: ", "1000000")),
                            (("--max-tokens", "99999999999"), ("--max-tokens: ", "2147483647")),
                            (("--top-p", "0"), ("--top-p: ",)),
                            (("--repetition-penalty", "9000"), ("--repetition-penalty: ", "10")),
                            (("--frequency-penalty", "-3"), ("--frequency-penalty: ", "-2")),
                            (("--max-tok", "3"), ("'--max-tok'",)),
                            (("--prompt", "b"), ("--prompt: ", "2 times")),
                            (("--stop", ""), ("--stop: ",)),
                            (("--seed",), ("--seed: ", "value")),
                            (("--json=maybe",), ("--json: ", "no value"))):
            with self.subTest(more=more):
                self.expect_error(tandem(*answer, *more), 2, *words)

    def test_a_value_may_look_like_an_option(self):
        run = tandem("generate", "--model", DEMO, "--prompt", "--help", "--stop", "--bogus", "--max-tokens", "1", "--json")
        self.assertEqual(run.code, 0, run)

    def test_text_for_a_model_without_a_tokenizer_is_refused_before_it_is_loaded(self):
        for command in ("generate", "score"):
            run = tandem(command, "--model", "synth:qwen3.5-397b-a17b", "--prompt", "a")
            self.expect_error(run, 1, "tokenizer", "--prompt-tokens")
        self.expect_error(tandem("generate", "--model", "synth:qwen3.5-0.8b@8,layers=1,layers=2", "--prompt-tokens", "1"), 1, "twice")

    def test_chat_commands_and_messages(self):
        for stop in (b"/exit\r\n", b"/exit \n"):
            run = tandem("chat", "--model", DEMO, "--max-tokens", "2", stdin=stop + b"hi\n")
            self.assertEqual((run.code, run.out), (0, ""), run)
        run = tandem("chat", "--model", DEMO, "--max-tokens", "2", stdin=b"caf\xe9\n")
        self.expect_error(run, 1, "user message", "UTF-8", "3")
        self.assertNotIn("tokenizer_config", run.err)
        run = tandem("chat", "--model", DEMO, "--max-tokens", "6", "--context", "40", stdin=b"hi\n" * 5)
        self.expect_error(run, 1, "/clear", "--context")


if __name__ == "__main__":
    unittest.main()
