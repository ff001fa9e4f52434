"""Hostile texts, for every output: what a terminal, a page, a shell or a file system may obey."""

import re
from typing import Final

HOSTILE: Final = {
    "colour": "\x1b[31mred\x1b[0m",
    "conceal": "\x1b[8mhidden",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "answerback": "\x05\x1b[c\x1b[6n",
    "eight-bit csi": "\x9b31m",
    "eight-bit osc": "\x9d0;owned\x9c",
    "bell": "\x07\x07",
    "carriage return": "all is well\rnode lost",
    "backspace": "lost\b\b\b\bgood",
    "line break": "lost\nNow:   nothing waits for an operator.",
    "next line": "lost\x85good",
    "vertical": "a\x0bb\x0cc",
    "separators": "a\u2028b\u2029c\x1c\x1d\x1e\x1fd",
    "delete": "a\x7fb",
    "null": "a\x00b",
    "override": "\u202egpj.exe\u202c",
    "embedding": "\u202a\u202b\u202d",
    "isolate": "\u2066a\u2067b\u2068c\u2069",
    "marks": "\u200ea\u200fb\u061cc",
    "zero width": "ad\u200bmin\u200c\u200d\u2060\ufeff",
    "tags": "\U000e0041\U000e007f",
    "variation": "a\ufe0f\U000e0100b\u034f\u3164",
    "soft hyphen": "ad\xadmin",
    "private": "\ue000\U000f0000",
    "markup": "[bold red]x[/] [link=http://evil.example]y[/link]",
    "html": "<script>alert(1)</script>",
    "attribute": "\"'><img src=x onerror=alert(1)>",
    "template": "{{ 7 * 7 }}{% raw %}${7*7}",
    "format": "{0.__class__} {node} %s %n",
    "path": "../../../tmp/x",
    "absolute": "/etc/passwd",
    "option": "-oProxyCommand=touch x",
    "shell": "$(touch x);`touch x`|touch x&&touch x",
    "metric": 'x"} 1\nnavarch_nodes_total{pool="y',
    "key": "a.b.*.>",
}

UNSAFE: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufe00-\ufe0f"
    "\U000e0000-\U000e01ef\ue000-\uf8ff]"
)
"""What no output may contain: all controls but the line break, bidirectional, zero width."""
