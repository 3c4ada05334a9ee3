"""Shared by the scripts that race retrie with a paper's program: the checkout and its commit, counts
such as 250k, and retrie's results.

The scripts build nothing: the authors' own instructions do. They only check that a checkout has the
commit that the script was written for, and say which of its files were changed.
"""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

from nodekit import fail

SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9}


def add_flags(parser, program):
    """The flags that all these scripts have."""
    parser.add_argument("--authors", metavar="DIR", required=True, help="a checkout of the authors' program")
    parser.add_argument("--program", metavar="BIN", help=program)
    parser.add_argument("--retrie", metavar="BIN", help="by default target/release/retrie")
    parser.add_argument("--rounds", type=int, default=1, help="of both, in turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")


def count(text):
    """A number such as 1000, 250k or 1m."""
    digits, unit = (text[:-1], SUFFIXES[text[-1]]) if text[-1:] in SUFFIXES else (text, 1)
    if not digits.isdecimal():
        raise ValueError(f"`{text}` is no number such as 1000, 250k or 1m")
    return int(digits) * unit


def checkout(folder, source, commit):
    """The folder, and the changed files of a checkout that must have this commit."""
    folder = Path(folder).resolve()
    head = git(folder, "rev-parse", "HEAD").strip()
    if head != commit:
        fail(f"{folder} is at {head[:12]}, and this script reads the output of {source} at {commit[:12]}")
    changed = [line[3:] for line in git(folder, "status", "--porcelain", "-uno").splitlines()]
    if changed:
        print(f"changed in {folder}: {', '.join(changed)}", flush=True)
    return folder, changed


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{folder} is no git checkout: {done.stderr.strip()}")
    return done.stdout


def program(given, usual):
    """The authors' program as an absolute path."""
    path = Path(given or usual)
    if not shutil.which(str(path)):
        fail(f"there is no program at {path}: build it as its authors say, or give --program")
    return str(path.resolve())


def output_of(command, **more):
    """Runs a command that must succeed; returns its standard output."""
    command = [str(word) for word in command]
    print(f"  {shlex.join(command)}", flush=True)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **more)
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-12:]
        fail("\n".join([f"exit code {done.returncode}: {shlex.join(command)}", *last]))
    return done.stdout


def bench(retrie, folder, *words):
    """Runs `retrie bench`; returns its results."""
    report = Path(folder) / "report.json"
    output_of([retrie, "bench", *words, "--json", report])
    return json.loads(report.read_text())["results"]


def in_turns(rounds, sides):
    """The rows of all sides in all rounds; every round starts at the other end."""
    if rounds < 1:
        fail("--rounds must be 1 at least")
    return [row for number in range(rounds) for side in sides[:: 1 if number % 2 == 0 else -1] for row in side()]


def write(results, file):
    if file:
        Path(file).write_text(json.dumps(results, indent=2) + "\n")
