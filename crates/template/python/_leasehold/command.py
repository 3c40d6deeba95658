"""One run: reads the command line as `python` does, runs the program, ends with its status.

It must not keep anything between the build and a run; `freshen` renews what the snapshot holds.
"""

import atexit
import builtins
import errno
import gc
import io
import linecache
import logging
import os
import runpy
import sys
import time
import types
import warnings
import zipfile

from . import archive
from .snapshot import STARTED_WITH

from _leasehold_world import exports
from _leasehold_world.imports import environment
from _leasehold_world.imports.exit import exit_with_code

_USAGE = "usage: python [option] ... [-c cmd | -m mod | --script name text | file | -] [arg] ..."
_HELP = f"""{_USAGE}
This Python is a snapshot in WebAssembly. Options:
-c cmd               the program is cmd
-m mod               run a module of the library, of the template or beside the script
--script name text   the program is text; it is told as the file name
-                    read the program from standard input (the default)
-u                   do not buffer standard output and standard error
-W arg, -X opt       as in CPython
-E -I -P -s -S       as in CPython, as far as there is something to ignore
-b -B -d -q -R -v    taken and without effect
-V, -h               version, this text
"""

# Everything that is loaded before a program starts: name of the top module to all of its names.
_PRELOADED: dict[str, list[str]] = {}
for _name in sys.modules:
    if _name not in STARTED_WITH and _name not in sys.builtin_module_names:
        _PRELOADED.setdefault(_name.partition(".")[0], []).append(_name)

# The last entry of `sys.modules` that is not of the program.
_MARK = "_leasehold.mark"


class Run(exports.Run):
    """The export `wasi:cli/run`."""

    def run(self):
        status = 1
        try:
            freshen()
            status = _run(sys.orig_argv)
        except BaseException as error:
            # Of the runner itself, such as a working directory that is not there.
            sys.__excepthook__(type(error), error, error.__traceback__)
        finally:
            exit_with_code(status)


def freshen():
    """Renews what a snapshot would repeat. `random`, the environment and the arguments are renewed
    by componentize-py before this is called."""
    logging._startTime = time.time_ns()
    folder = environment.initial_cwd()
    if folder:
        os.chdir(folder)
    sys.orig_argv = list(sys.argv)
    sys.modules[_MARK] = sys.modules["_leasehold"]
    _open_streams("PYTHONUNBUFFERED" in os.environ)


def _open_streams(unbuffered):
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        if number == 0:
            buffer = io.BufferedReader(raw)
        else:
            buffer = raw if unbuffered else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "surrogateescape",
            newline="\n",
            line_buffering=number == 2,
            write_through=unbuffered,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(argv):
    try:
        return _finish(_guarded(lambda: _start(argv)))
    except _Usage as wrong:
        sys.stderr.write(f"{wrong}\n{_USAGE}\nTry `python -h' for more information.\n")
        sys.stderr.flush()
        return 2


class _Usage(Exception):
    """A command line that makes no sense."""


class _Line:
    """A command line that was read."""

    def __init__(self, argv):
        self.kind = "stdin"
        self.program = None
        self.name = ""
        self.path = True
        self.environment = True
        self.warnings = []
        self.rest = []
        words = argv[1:]
        while words:
            word = words.pop(0)
            if word == "--script":
                self._program("text", word, words)
                self.name = self.program
                self.program = self._value(word, words)
            elif word == "-" or not word.startswith("-"):
                self.kind = "stdin" if word == "-" else "file"
                self.name = self.program = word
            elif word in ("--version", "--help"):
                self.kind = word.strip("-")
            elif word.startswith("--"):
                raise _Usage(f"unknown option {word}")
            else:
                self._letters(word[1:], words)
            if self.program is not None or self.kind in ("version", "help"):
                break
        self.rest = words

    def _program(self, kind, word, words):
        self.kind = kind
        self.program = self._value(word, words)

    def _value(self, word, words):
        if not words:
            raise _Usage(f"Argument expected for the {word} option")
        return words.pop(0)

    def _letters(self, letters, words):
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "cmWX":
                if letters:
                    words.insert(0, letters)
                value = self._value("-" + letter, words)
                letters = ""
            if letter == "c":
                self.kind, self.program, self.name = "command", value, "-c"
            elif letter == "m":
                self.kind, self.program, self.name = "module", value, "-m"
            elif letter == "W":
                self.warnings.append(value)
            elif letter == "X":
                key, _, setting = value.partition("=")
                sys._xoptions[key] = setting or True
            elif letter == "V":
                self.kind = "version"
            elif letter in "h?":
                self.kind = "help"
            elif letter == "u":
                _open_streams(True)
            elif letter in "EI":
                self.environment = False
                self.path = self.path and letter != "I"
            elif letter == "P":
                self.path = False
            elif letter not in "bBdqRsSv":
                raise _Usage(f"Unknown option: -{letter}")


def _start(argv):
    line = _Line(argv)
    sys.argv = [line.name, *line.rest]
    if line.kind == "version":
        print("Python", sys.version.partition(" ")[0])
        return
    if line.kind == "help":
        print(_HELP, end="")
        return
    _use_environment(line)
    if line.kind == "file":
        _run_file(line)
    elif line.kind == "module":
        _add_to_path(line, os.getcwd())
        if line.program not in STARTED_WITH:
            sys.modules.pop(line.program, None)
        runpy._run_module_as_main(line.program)
    elif line.kind == "command":
        _add_to_path(line, "")
        _execute(line.program, "<string>")
    elif line.kind == "text":
        _add_to_path(line, os.path.dirname(line.name))
        _execute(line.program, line.name, file=line.name)
    else:
        _add_to_path(line, "")
        _execute(sys.stdin.buffer.read(), "<stdin>")


def _use_environment(line):
    for entry in reversed(line.warnings):
        warnings._setoption(entry)
    if not line.environment:
        return
    for entry in filter(None, os.environ.get("PYTHONWARNINGS", "").split(",")):
        warnings._setoption(entry)
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(":")):
        if folder:
            _prefer(folder)


def _add_to_path(line, folder):
    """Puts the folder of the program on the path, unless the command line forbids it."""
    if line.path:
        _prefer(folder)


def _prefer(folder):
    """Makes `folder` the first place to look for modules; its modules come before ours."""
    sys.path.insert(0, folder)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return
    for name in names:
        # What the library was imported with stays in its hands; the program gets its own.
        for module in _PRELOADED.get(name.removesuffix(".py"), ()):
            sys.modules.pop(module, None)


def _run_file(line):
    path = line.program
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", False)
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        hint = ""
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTCAPABLE):
            hint = "; a WebAssembly run sees only the directories it is given"
        sys.stderr.write(f"python: can't open file {path!r}: {reason}{hint}\n")
        sys.exit(2)
    _add_to_path(line, os.path.dirname(path))
    _execute(source, path, file=path)


def _execute(source, name, file=None):
    """Runs the program as `__main__`. Text is shown in tracebacks even where no file has it."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if file is not None:
        main.__file__ = file
    sys.modules["__main__"] = main
    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _guarded(action):
    """Runs `action` and gives the status that its end means."""
    try:
        action()
        return 0
    except _Usage:
        raise
    except SystemExit as end:
        return _exit_status(end.code)
    except BaseException as error:
        error.__traceback__ = _without_runner(error.__traceback__)
        kind = type(error)
        try:
            sys.excepthook(kind, error, error.__traceback__)
        except SystemExit as end:
            return _exit_status(end.code)
        except BaseException as second:
            second.__traceback__ = _without_runner(second.__traceback__)
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(second), second, second.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, error, error.__traceback__)
        return 130 if kind is KeyboardInterrupt else 1


def _exit_status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _without_runner(frames):
    """The traceback without the frames of this module at its start."""
    while frames is not None and frames.tb_frame.f_globals is globals():
        frames = frames.tb_next
    return frames


def _finish(status):
    """What CPython does at its end, in its order."""
    try:
        # There are no threads to wait for.
        atexit._run_exitfuncs()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    status = _flush(status)
    _drop_globals()
    return _flush(status)


def _flush(status):
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception as error:
            if stream is sys.stdout:
                status = 120
                sys.unraisablehook(types.SimpleNamespace(
                    exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__,
                    err_msg="Exception ignored on flushing sys.stdout", object=stream,
                ))
    return status


def _drop_globals():
    """Lets go of what the program holds, so that its files are written and its objects finalized."""
    # Only what came after `_MARK`: looking at a module of the snapshot is a page to be copied.
    own = [sys.modules.get("__main__")]
    for name in reversed(sys.modules):
        if name == _MARK:
            break
        own.append(sys.modules[name])
    for module in own:
        names = getattr(module, "__dict__", {})
        for name in sorted(names, key=lambda name: not name.startswith("_")):
            if name != "__builtins__":
                names[name] = None
    own.clear()
    gc.collect()


def _exit_now(status=0):
    """For `os._exit`: WASI's own exit of a process tells no more than success or failure."""
    exit_with_code(status & 0xFF)


os._exit = _exit_now


_REHEARSED = [
    ["python", "-c", "print(1)"],
    ["python", "--script", "/rehearsal.py", "import json, sys\nprint(json.dumps({'a': [1, 'b']}), file=sys.stdout)"],
]


def rehearse():
    """Goes the way of a run while the template is built: caches that are filled at the first time, and code that is
    adapted to what it works on, are in the snapshot then. It leaves nothing else."""
    names = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__", "argv", "orig_argv")
    kept = {name: getattr(sys, name) for name in names if hasattr(sys, name)}
    path, main, listdir = sys.path[:], sys.modules.get("__main__"), os.listdir
    os.listdir = _no_folder
    try:
        # Code is adapted when it has run a few times.
        for words in _REHEARSED * 8:
            sys.modules[_MARK] = sys.modules["_leasehold"]
            _open_streams(False)
            sys.stdout = io.TextIOWrapper(
                io.BufferedWriter(_Nowhere()), encoding="utf-8", errors="surrogateescape", newline="\n"
            )
            status = _flush(_guarded(lambda: _start(words)))
            _drop_globals()
            del sys.modules[_MARK]
            linecache.clearcache()
            sys.path[:] = path
            if status != 0:
                raise RuntimeError(f"the rehearsal of {words} ended with {status}")
    finally:
        os.listdir = listdir
        sys.modules["__main__"] = main
        for name in names:
            if name in kept:
                setattr(sys, name, kept[name])
            elif hasattr(sys, name):
                delattr(sys, name)


def _no_folder(folder):
    raise OSError(errno.ENOENT, "no folder in a rehearsal", folder)


class _Nowhere(io.RawIOBase):
    """Takes what is written, and keeps nothing."""

    def writable(self):
        return True

    def write(self, data):
        return len(data)
