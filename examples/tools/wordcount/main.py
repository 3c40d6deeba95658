"""Counts the words of the text on standard input, which is JSON, and answers in JSON."""

import collections
import json
import re
import sys

request = json.load(sys.stdin)
text = request["text"]
words = re.findall(r"\w+", text.lower())
top = collections.Counter(words).most_common(request.get("top", 3))
json.dump(
    {
        "lines": len(text.splitlines()),
        "words": len(words),
        "characters": len(text),
        "top": [{"word": word, "count": count} for word, count in top],
    },
    sys.stdout,
)
print()
