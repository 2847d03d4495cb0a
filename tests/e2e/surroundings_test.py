"""Closed streams, signals, limits and odd kinds of file: an answer or a message and an exit code, nothing left behind."""
import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import BINARY, DEMO, TINY, TestCase, read_safetensors, start, tandem, write_safetensors


def with_closed(fd, *args, stdin=b""):
    """The finished run of the binary with a standard descriptor closed; what it wrote to it is None."""
    return subprocess.run([BINARY, *args], input=None if fd == 0 else stdin, preexec_fn=lambda: os.close(fd), timeout=60,
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
                                preexec_fn=lambda: os.close(2))
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
        time.sleep(0.5)  # nothing shows when the answer begins; all of it takes several times as long
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


if __name__ == "__main__":
    unittest.main()
