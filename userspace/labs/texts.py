# SPDX-License-Identifier: GPL-2.0
"""Texts in the language of LANGUAGE: texts.txt, beside this file or the link to it, has the Chinese ones."""

import functools
import os
import re


@functools.cache
def chinese():
    """The texts of texts.txt: the Chinese one by the English one."""
    with open(f"{os.path.dirname(os.path.abspath(__file__))}/texts.txt") as f:
        return dict(re.findall(r"^en = (.+)\nzh = (.+)$", f.read(), re.MULTILINE))


def say(text, *values, **named):
    """A text with its values. Only what is written in the code is a text."""
    if os.environ.get("LANGUAGE", "").startswith("zh"):
        text = chinese()[text]
    return text.format(*values, **named)
