"""What is done once, while the template is built: the library and the baked packages are imported.

`prepare` comes first, `seal` last. A baked package that cannot be imported ends the build. A module of
the library that cannot, and one inside of a package that misses another module, is left to be imported
(and refused) at run time: packages import their parts for other systems when they are on one.
"""

import atexit
import gc
import importlib
import json
import os
import sys
import warnings

from . import archive

# What an interpreter has loaded when it starts, before any program asks for something.
STARTED_WITH = frozenset(sys.modules)

# Folders of the build, as componentize-py mounts them.
_STAGE = os.path.dirname(os.path.dirname(__file__))
_BAKED = _STAGE + "/site-packages"

# Where this package is in the archive.
HOME = archive.PACKAGES + "/_leasehold"

# Not of use here, and large.
_LEFT_OUT = frozenset("ensurepip idlelib lib2to3 test tkinter turtledemo turtle venv pip".split())

# In the archive, imported when a program asks: they act on import, or cost much and are rarely wanted.
_NOT_BEFORE_ASKED = frozenset(
    "__hello__ __phello__ antigravity this pydoc_data _pyrepl _ios_support _apple_support".split()
)

# Bytes that a run can allocate before its memory has to grow, the largest hole of the heap that is taken, and what
# the sizes of holes are multiples of.
_ROOM = 1 << 20
_HOLE_MAX = 1 << 16
_STEP = 8

# Modules inside of packages that were left to the runs, and why.
_left = {}

# What fills the holes of the heap.
_filling = []


def prepare():
    """Fills the archive and imports all that can be."""
    _store(archive.LIBRARY, archive.LIBRARY, _LEFT_OUT)
    if os.path.isdir(_BAKED):
        _store(_BAKED, archive.PACKAGES, ())
    _store(os.path.dirname(__file__), HOME, ())
    sys.path[:] = [archive.LIBRARY, archive.PACKAGES]
    sys.path_hooks.insert(0, archive.hook)
    sys.path_importer_cache.clear()
    sys.meta_path.append(archive.Distributions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _import_all()


def _store(source, target, left_out):
    for name in sorted(os.listdir(source)):
        path = f"{source}/{name}"
        if name in left_out or name == "__pycache__" or path == archive.PACKAGES:
            continue
        if os.path.isdir(path):
            _store(path, f"{target}/{name}", ())
        elif target.startswith(archive.PACKAGES) or name.endswith((".py", ".json", ".css")):
            with open(path, "rb") as file:
                archive.add(f"{target}/{name}", file.read())


def _import_all():
    for name in archive.modules(archive.LIBRARY):
        top = name.partition(".")[0]
        if top in _NOT_BEFORE_ASKED or top == "site-packages" or name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
        except Exception:
            # A part that this interpreter was built without; a whole module of that kind is told as absent.
            if name == top:
                archive.remove(f"{archive.LIBRARY}/{top}")
    for name in archive.modules(archive.PACKAGES):
        if not _is_own(name) and "__main__" not in name and _wanted(name):
            try:
                importlib.import_module(name)
            except ImportError as error:
                if "." not in name:
                    raise
                _left[name] = str(error)


def _is_own(name):
    return name.partition(".")[0] == "_leasehold"


def _wanted(name):
    """Whether a baked module is imported before it is asked for: what the build does not exclude."""
    lazy = _settings().get("lazy", [])
    return not any(name == entry or name.startswith(entry + ".") for entry in lazy)


def _settings():
    try:
        with open(_STAGE + "/template.json", encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def seal(rehearse):
    """Leaves nothing of the build behind, and makes the runs cheap. `rehearse` goes the way of a run."""
    from . import absent

    absent.install()
    _adopt()
    _let_go()
    for name in ("linecache", "tokenize"):
        importlib.import_module(name)
    sys.modules["linecache"].clearcache()
    sys.path_importer_cache.clear()
    if sys.modules["tempfile"]._name_sequence is not None:
        raise RuntimeError("a module drew random file names while it was imported")
    _tell()
    rehearse()
    # What is there now is of every run and is never looked at by the collector again.
    gc.collect()
    gc.freeze()
    # The collection has emptied what the interpreter keeps at hand.
    rehearse()
    _fill()


def _fill():
    """Takes the holes of the heap: what a run allocates is on few pages then, one beside the other. Each page that
    a run writes to is copied for it."""
    room = bytes(_ROOM)
    edge = id(room)
    # Free again, it is the room of the runs: nothing lies above it.
    del room
    for size in range(_HOLE_MAX, 0, -_STEP):
        block = bytes(size)
        while id(block) < edge:
            _filling.append(block)
            block = bytes(size)


class _Secrets(dict):
    """Settings of the main process without its key, which is drawn when it is asked for."""

    def __missing__(self, name):
        if name != "authkey":
            raise KeyError(name)
        self[name] = sys.modules["multiprocessing.process"].AuthenticationString(os.urandom(32))
        return self[name]


def _let_go():
    """Removes what modules drew or registered for the process of the build."""
    process = sys.modules["multiprocessing.process"]._current_process
    settings = _Secrets(process._config)
    del settings["authkey"]
    process._config = settings
    # There are no child processes to wait for.
    atexit.unregister(sys.modules["multiprocessing.util"]._exit_function)


def _tell():
    """Leaves for the builder what this interpreter is and what a program can import."""
    own = ("_leasehold", "componentize_py", "__main__")
    names = {name for name in sys.modules if not name.startswith(own)}
    names.update(name for name in archive.modules(archive.PACKAGES) if not _is_own(name))
    names.update(name for name in _NOT_BEFORE_ASKED if archive.module_file(archive.LIBRARY, name))
    told = {
        "version": sys.version.partition(" ")[0],
        "modules": sorted(names),
        "left": [f"{name}: {why}" for name, why in sorted(_left.items())],
    }
    with open(_STAGE + "/sealed.json", "w", encoding="utf-8") as file:
        json.dump(told, file)


def _adopt():
    """Modules that were loaded from the folders of the build are of the archive from now on."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if not origin or isinstance(spec.loader, archive.Loader):
            continue
        path = origin.replace(_STAGE + "/", archive.PACKAGES + "/", 1)
        if not archive.Node(path).is_file():
            continue
        loader = archive.Loader(name, path)
        spec.loader = module.__loader__ = loader
        spec.origin = module.__file__ = path
        spec.cached = module.__cached__ = None
        if spec.submodule_search_locations is not None:
            folder = path.rpartition("/")[0]
            spec.submodule_search_locations = module.__path__ = [folder]
