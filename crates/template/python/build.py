"""Makes the component: `python3 build.py OUTPUT WIT STAGE`, with componentize-py on the path.

STAGE is the folder that the interpreter of the build sees. The library is called, not the program of that
name: the program would show the interpreter the packages of this machine as well.
"""

import sys

import componentize_py

output, wit, stage = sys.argv[1:]
componentize_py.componentize(
    [wit],
    ["command"],
    [],
    False,
    "_leasehold_world",
    [stage],
    [],
    "_leasehold",
    output,
    False,
    [],
    [],
    False,
    None,
)
