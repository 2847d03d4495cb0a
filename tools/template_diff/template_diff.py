#!/usr/bin/env python3
"""Compares our template interpreter with jinja2, set up as Hugging Face transformers runs chat templates.

  template_diff.py RENDER_LINES TEMPLATES_DIR [--random N] [--conversations N] [--seed S] [--config FILE ...]

RENDER_LINES is the built program of render_lines.cc. Renders (1) the constructs in snippets.txt, (2) every template of
TEMPLATES_DIR, and the chat_template of every tokenizer_config.json given with --config, over generated conversations,
(3) N random expressions. Outputs must be equal; where jinja2 raises, we must report an error (texts may differ). In
(2), text of the conversation must never count as the template's. Prints the first 20 differences, exits 1 if there is one.
"""
import argparse
import copy
import datetime
import itertools
import json
import pathlib
import random
import subprocess
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

sys.dont_write_bytecode = True
import generate  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2022, 1, 2, 3, 4, 5)  # also in render_lines.cc


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: renders its body, as in transformers."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    for unused in ("lipsum", "cycler", "joiner"):
        del env.globals[unused]
    return env


def expected(env, template, variables):
    """('text', rendered) or ('error', message)."""
    try:
        # A copy: jinja2's filters can change a list (s += ...) in spite of the sandbox.
        text = env.from_string(template).render(**copy.deepcopy(variables))
        text.encode()  # lone surrogates are an error here
        return "text", text
    except Exception as error:  # whatever Python raises inside a template
        return "error", f"{type(error).__name__}: {error}"


def read_snippets():
    """Blocks separated by lines of ----; # starts a comment line outside of them."""
    blocks, current = [], []
    for line in (HERE / "snippets.txt").read_text().split("\n"):
        if line.startswith("----"):
            blocks.append("\n".join(current))
            current = []
        elif not (line.startswith("##") and not current):
            current.append(line)
    blocks.append("\n".join(current))
    return [b for b in blocks if b]


# Errors of ours where jinja2 gives a text that means nothing: it folds a slice of a constant number to undefined, and
# prints methods with their address.
TOLERATED = ("object cannot be sliced", "a value of type 'function' has no printed form")


def check_pieces(pieces):
    """What generate.py marks as content must lie in content, and control tokens only where it marked them."""
    marked = generate.OPEN + generate.CLOSE
    for text, from_template in pieces:
        if from_template and any(mark in text for mark in marked):
            return f"content counts as template text: {text!r}"
        if not from_template and "<|im_" in text.replace(generate.OPEN + "<|im_", ""):
            return f"template text counts as content: {text!r}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("render_lines")
    parser.add_argument("templates", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--conversations", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", action="append", default=[])
    args = parser.parse_args()
    rng = random.Random(args.seed)

    cases = []  # name, template, variables, whether to check pieces
    for i, snippet in enumerate(read_snippets()):
        cases.append((f"snippet {i}", snippet, generate.VARIABLES, False))
    templates = [(p.name, p.read_text()) for p in sorted(args.templates.glob("*.jinja"))]
    for config in args.config:
        templates.append((config, json.loads(pathlib.Path(config).read_text())["chat_template"]))
    if not templates:
        sys.exit(f"no templates under {args.templates}")
    conversations = [generate.conversation(rng) for _ in range(args.conversations)]
    for (name, template), (i, variables) in itertools.product(templates, enumerate(conversations)):
        cases.append((f"{name}, conversation {i}", template, variables, True))
    for i in range(args.random):
        cases.append((f"random {i}", generate.random_template(rng), generate.VARIABLES, False))

    lines = "".join(json.dumps({"template": t, "variables": v}, ensure_ascii=False) + "\n" for _, t, v, _ in cases)
    ran = subprocess.run([args.render_lines], input=lines, capture_output=True, text=True, check=True)
    ours = [json.loads(line) for line in ran.stdout.split("\n") if line]
    assert len(ours) == len(cases)

    warnings.simplefilter("ignore", SyntaxWarning)  # for the Python that jinja2 makes of wrong templates
    env = environment()
    differences, errors, texts, tolerated = 0, 0, 0, 0
    for (name, template, variables, has_marks), our in zip(cases, ours):
        kind, value = expected(env, template, variables)
        errors += kind == "error"
        texts += kind == "text"
        problem = None
        if kind == "error" and "error" not in our:
            problem = f"jinja2 raises {value}\n  we give {our['text']!r}"
        elif kind == "text" and our.get("error", "").endswith(TOLERATED):
            tolerated += 1
        elif kind == "text" and our.get("text") != value:
            problem = f"jinja2 gives {value!r}\n  we give {our.get('text', our.get('error'))!r}"
        elif kind == "text" and has_marks:
            problem = check_pieces(our["pieces"])
        if problem:
            differences += 1
            if differences > 20:
                continue
            shown = template if len(template) < 400 else template[:100] + "..."
            print(f"{name}: {problem}\n  template {shown!r}")
    print(f"{len(cases)} renders against jinja2 {jinja2.__version__}: {texts} texts, {errors} errors, "
          f"{tolerated} tolerated, {differences} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
