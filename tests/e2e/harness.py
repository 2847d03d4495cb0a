"""Runs the built binary for the end-to-end tests: python3 x_test.py BINARY [unittest arguments]."""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "models" / "tandem-demo"
GOLDENS = ROOT / "tests" / "data" / "goldens"
TINY = GOLDENS / "tiny" / "qwen3_5"  # a hybrid of four layers without a tokenizer
BINARY = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None


class Run:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit code {self.code}\nstdout: {self.out!r}\nstderr: {self.err!r}"


def tandem(*args, stdin=b"", timeout=120, stdout=subprocess.PIPE, cwd=None):
    done = subprocess.run([BINARY, *args], input=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=timeout, cwd=cwd,
                          check=False)
    return Run(done.returncode, (done.stdout or b"").decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def start(*args, cwd=None):
    return subprocess.Popen([BINARY, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)


class TestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tmp = pathlib.Path(self.folder.name)

    def json_of(self, *args, **kwargs):
        run = tandem(*args, **kwargs)
        self.assertEqual(run.code, 0, run)
        self.assertEqual(run.out.count("\n"), 1, "one line of JSON")
        return json.loads(run.out)

    def expect_error(self, run, code, *words):
        """The last line names what it is about, on standard error, after the subcommand's name."""
        self.assertEqual(run.code, code, run)
        self.assertTrue((run.err.splitlines() or [""])[-1].startswith("tandem"), run)
        for word in words:
            self.assertIn(word, run.err)

    def copy(self, source=TINY):
        target = self.tmp / "model"
        shutil.copytree(source, target)
        return target


def read_safetensors(path):
    """(header, data): the header's dictionary, and the bytes behind it."""
    raw = path.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
