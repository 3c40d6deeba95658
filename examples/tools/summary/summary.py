"""Sums up the numbers on standard input, which is JSON, and answers in JSON."""

import json
import statistics
import sys

numbers = json.load(sys.stdin)["numbers"]
json.dump(
    {
        "count": len(numbers),
        "least": min(numbers),
        "most": max(numbers),
        "mean": statistics.fmean(numbers),
        "median": statistics.median(numbers),
    },
    sys.stdout,
)
print()
