"""Closed streams, signals, limits and odd kinds of file: an answer or a message and an exit code, nothing left behind."""
import os
import subprocess
import unittest

from harness import BINARY, DEMO, TINY, TestCase, tandem


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
