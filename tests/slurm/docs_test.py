"""Every command of docs/cluster.md and docs/cluster/*.md is run, in the order of its document, on a SLURM of two nodes.

A command is a line of a code block (indented or fenced) whose first word is a program. Most run as they stand, in a folder with
prepared data. RULES says for the others what runs instead and why; a line that is a synopsis (it has … or [brackets]) must
name options that the program's help has. A program that no rule covers fails the test."""

import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import unittest

from slurm_cluster import run_in_namespaces
from slurm_jobs import PROGRAM, SlurmTest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "docs/cluster.md", *sorted((ROOT / "docs/cluster").glob("*.md"))]
ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
# Words that begin a line of a code block and are neither output nor settings.
PROGRAMS = {"pharos", "./srun.sh", "srun.sh", "make", "sbatch", "salloc", "srun", "scontrol", "scancel", "squeue", "sinfo", "sacct",
            "docker", "podman", "buildah", "enroot", "kubectl", "nsys", "cd", "export", "mkdir", "cat", "tail", "grep", "git", "ls", "unsquashfs"}


def code_lines(text):
    """Lines of code blocks with their number, continuation lines joined, without comments."""
    fenced, blank, in_block, held, held_at = False, True, False, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        in_block = fenced or line.startswith("    ") and (blank or in_block)
        blank = not line.strip()
        if not in_block or blank:
            continue
        code = re.sub(r"(^|\s+)#\s.*$", "", line.strip() if not fenced else line.rstrip())
        held, held_at = (held + " " + code.strip()).strip(), held_at or number
        if held.endswith("\\"):
            held = held[:-1].rstrip()
            continue
        if held:
            yield held_at, held
        held, held_at = "", 0


def first_word(command):
    words = command.split()
    while words and ASSIGNMENT.match(words[0]):
        words.pop(0)
    return words[0] if words else ""


def commands(document):
    found = []
    for number, line in code_lines(document.read_text()):
        word = first_word(line)
        if word in PROGRAMS or (word and shutil.which(word) and not re.search(r"[:=|]$", word)):
            found.append((number, line))
    return found


if __name__ == "__main__":
    for path in DOCUMENTS:
        for place, words in commands(path):
            print(f"{path.name}:{place}: {words}")
