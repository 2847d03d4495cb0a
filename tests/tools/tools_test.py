"""tools/layers and tools/docs_check find what they are there to find, in small trees made for it."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

FAKE_TANDEM = """#!/bin/sh
case "$1" in
  generate) echo '  --model TEXT'; echo '  --max-tokens INT' ;;
  bench) case "$2" in decode) echo '  --batch INT' ;; *) echo '  --json' ;; esac ;;
  *) printf 'Subcommands:\\n  generate   writes\\n  bench      measures\\n' ;;
esac
"""


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_tool(self, tool, *args):
        command = [sys.executable, ROOT / "tools" / tool, *args, "--root", self.root]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def expect_clean(self, tool, *args):
        run = self.run_tool(tool, *args)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def expect_breach(self, where, tool, *args):
        run = self.run_tool(tool, *args)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn(where, run.stdout)


class Layers(Tree):
    def setUp(self):
        super().setUp()
        self.write("src/base/a.h", "")
        self.write("src/tensor/t.h", '#include "base/a.h"\n')
        self.write("src/format/f.h", '#include <vector>\n#include "base/a.h"\n#include "tensor/t.h"\n')
        self.write("src/text/x.h", '#include "base/a.h"\n')
        self.write("src/backend/cpu/c.cc", '#include "backend/cpu/c.h"\n')
        self.write("src/backend/cpu/c.h", "")
        self.write("src/backend/reference/r.h", "")
        self.write("src/base/CMakeLists.txt", "td_module(base SOURCES a.cc)\n")
        self.write("src/tensor/CMakeLists.txt", "td_module(tensor SOURCES t.cc DEPS base)\n")
        self.write("src/format/CMakeLists.txt", "td_module(format SOURCES f.cc\n  DEPS tensor LIBS fmt::fmt)\n")
        self.write("src/text/CMakeLists.txt", "td_module(text SOURCES x.cc DEPS base)\n")

    def test_a_tree_whose_includes_point_upward_passes(self):
        self.expect_clean("layers")

    def test_an_include_that_points_downward(self):
        self.write("src/base/b.cc", '\n#include "tensor/t.h"\n')
        self.expect_breach("src/base/b.cc:2: base/ may not use tensor/", "layers")

    def test_text_sees_no_tensors(self):
        self.write("src/text/y.cc", '#include "tensor/t.h"\n')
        self.expect_breach("src/text/y.cc:1: text/ may not use tensor/", "layers")

    def test_an_undeclared_dependency(self):
        self.write("src/format/CMakeLists.txt", "td_module(format SOURCES f.cc DEPS base)\n")
        self.expect_breach("src/format/f.h:3: format/ uses tensor/ without naming it", "layers")

    def test_a_load_that_the_compiler_moves_past_the_wait(self):
        self.write("src/backend/CMakeLists.txt", "td_module(backend SOURCES k.cu)\n")
        self.write("src/backend/k.cu", "\nfloat f(const float* p) { return __ldg(p); }\n")
        self.expect_breach("src/backend/k.cu:2: __ldg( is moved past wait_for_inputs()", "layers")

    def test_a_file_that_is_not_there(self):
        self.write("src/tensor/u.cc", '#include "t.h"\n')
        self.expect_breach("src/tensor/u.cc:1:", "layers")

    def test_a_module_that_is_not_listed(self):
        self.write("src/extra/e.h", "")
        self.expect_breach("src/extra/e.h:1:", "layers")

    def test_backends_stay_apart(self):
        self.write("src/backend/cpu/d.cc", '#include "backend/reference/r.h"\n')
        self.expect_breach("src/backend/cpu/d.cc:1: backend/cpu may not use backend/reference", "layers")

    def test_environment_device_and_architecture_names(self):
        self.write("src/cli/main.cc", 'getenv("HOME");\n')
        self.expect_clean("layers")
        for name, line in (("src/base/e.cc", 'std::getenv("X")'), ("src/model/g.cc", "#ifdef TANDEM_CUDA"),
                           ("src/backend/k.cc", "void rope_for_qwen3();")):
            path = self.write(name, line + "\n")
            self.expect_breach(name + ":1:", "layers")
            path.unlink()


class DocsCheck(Tree):
    def setUp(self):
        super().setUp()
        self.write("src/base/a.h", "")
        self.write("src/base/a.cc", "")
        self.write("docs/more.md", "back to [the start](../README.md)\n")
        self.write("tools/layers", 'add_argument("--root")\n')
        self.write("Makefile", "build: x\n\tcmake\n")
        self.tandem = self.write("build/tandem", FAKE_TANDEM)
        self.tandem.chmod(0o755)

    def readme(self, text):
        self.write("README.md", text)

    def test_what_exists_passes(self):
        self.readme("See `src/base/a.{h,cc}`, `base/a.h:12`, `src/*/a.h`, [more](docs/more.md#part) and `text/plain`.\n"
                    "Run `make build`, `cmake --preset\nrelease`, `--max-tokens 3`, `tools/layers --root .`\n\n"
                    "```\n$ build/tandem generate --model \\\n   X --max-tokens 3 && tandem bench decode --batch 2\n```\n")
        self.expect_clean("docs_check", self.tandem)

    def test_paths_targets_and_links_that_do_not_exist(self):
        for text in ("`src/base/b.h`", "`base/b.cc`", "`docs/{more,less}.md`", "[x](docs/less.md)", "`make demo`",
                     "```\ncat docs/none\n```", "    cat docs/none\n"):
            self.readme("\n" + text + "\n")
            self.expect_breach("README.md:", "docs_check")

    def test_flags_that_no_help_knows(self):
        for text in ("`tandem generate --max-token 3`", "`tandem generate --batch 3`", "`--batches`",
                     "`tandem bench decode --model X`", "`tools/layers --deep`"):
            self.readme("first\n" + text + "\n")
            self.expect_breach("README.md:2:", "docs_check", self.tandem)


if __name__ == "__main__":
    unittest.main()
