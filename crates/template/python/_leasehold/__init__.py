"""The Python of a snapshot template: a `wasi:cli/command` that behaves like `python`.

componentize-py imports this package while the template is built and stores the memory of the
interpreter afterwards. Every run starts from that memory, so nothing here may keep a secret, an open
file, a clock reading or a random number of the build; `command.freshen` renews what must differ.

Where to start: `snapshot` is what happens once, `command` is what happens in every run.
"""

import sys

# Before anything else is imported: the folders of the build must stay as they are.
sys.dont_write_bytecode = True

from . import snapshot

# Made by componentize-py for the world; `prepare` takes their folder off the path.
import _leasehold_world.exports
import _leasehold_world.imports.environment
import _leasehold_world.imports.exit

snapshot.prepare()

# From here on the package is read from the archive, as it will be in the runs.
__path__[:] = [snapshot.HOME]

from .command import Run, rehearse

snapshot.seal(rehearse)
