# SPDX-License-Identifier: GPL-2.0
"""Texts in the language of LANGUAGE: texts.txt in the folders of the programs that run has the Chinese ones."""

import functools
import os
import re
import sys


@functools.cache
def chinese():
    """The texts of each texts.txt: the Chinese one by the English one. A lab also runs what the suites have."""
    texts = {}
    for folder in {*sys.path, os.path.dirname(os.path.abspath(__file__))}:
        if os.path.exists(f"{folder}/texts.txt"):
            with open(f"{folder}/texts.txt") as f:
                texts.update(re.findall(r"^en = (.+)\nzh = (.+)$", f.read(), re.MULTILINE))
    return texts


def say(text, *values, **named):
    """A text with its values. Only what is written in the code is a text."""
    if os.environ.get("LANGUAGE", "").startswith("zh"):
        text = chinese()[text]
    return text.format(*values, **named)
