"""A script for both ways of running it."""
import pathlib
import sys

print(sys.argv[1:], __file__, __name__, __doc__, __spec__, sys.path[0], type(__loader__).__name__)
print(pathlib.Path(__file__).name, sorted(name for name in globals() if name.startswith("__")))


def fail():
    raise LookupError("here")


fail()
