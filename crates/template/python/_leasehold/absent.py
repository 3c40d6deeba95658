"""What a snapshot cannot have, told in one clear error that names the backend which has it.

The type of each error is the one CPython raises where the thing is missing, so that programs which are
prepared for it go on. Nothing of the standard library is changed on disk: it is hooks alone.
"""

import _socket
import _thread
import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading

_ELSEWHERE = "run it with --isolation process"


def text(what):
    """The words for a thing that is not there."""
    return f"this Python is a WebAssembly snapshot without {what}; {_ELSEWHERE}"


# Parts of the standard library that need what the snapshot was not built with.
_MODULES = {
    "threads": ["_interpreters", "_interpqueues", "_interpchannels"],
    "processes": ["_multiprocessing", "_posixsubprocess", "_posixshmem", "_remote_debugging"],
    "TLS": ["ssl", "_ssl"],
    "C extensions": ["ctypes", "_ctypes"],
    "memory maps": ["mmap"],
    "a terminal": ["curses", "_curses", "_curses_panel", "readline", "termios", "tty", "pty"],
    "a display": ["tkinter", "_tkinter", "turtle", "turtledemo", "idlelib"],
    "installers": ["ensurepip", "venv", "pip"],
    "bzip2, xz and zstd": ["bz2", "_bz2", "lzma", "_lzma", "_zstd"],
    "users, limits and locks of the system": ["fcntl", "grp", "pwd", "resource", "syslog"],
    "dbm libraries": ["_dbm", "_gdbm"],
}
_WHY = {name: what for what, names in _MODULES.items() for name in names}

_PROCESS_CALLS = frozenset(
    "system fork forkpty wait waitpid wait3 wait4 waitid posix_spawn posix_spawnp killpg kill "
    "execl execle execlp execlpe execv execve execvp execvpe "
    "pipe pipe2 spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe".split()
)


class Unknown:
    """Last on `sys.meta_path`: says why a module that nobody found is not there."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        # `importlib.util.find_spec` asks and expects None; only an import is told why.
        importing = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"
        if path is not None or not importing:
            return None
        if fullname in _WHY:
            why = text(_WHY[fullname])
        else:
            why = (
                "this Python is a WebAssembly snapshot; it has the standard library, the packages of "
                "its template and pure Python files beside the script, but no C extensions; "
                "for anything else " + _ELSEWHERE
            )
        raise ModuleNotFoundError(f"No module named {fullname!r}: {why}", name=fullname)


# A traceback leaves out the frames of importlib at the end of a failed import; this one is of that kind.
Unknown.find_spec.__code__ = Unknown.find_spec.__code__.replace(
    co_filename="<frozen importlib._bootstrap>"
)


def _unsupported(what):
    def refuse(*args, **kwargs):
        raise OSError(errno.ENOTSUP, text(what))

    return refuse


def _no_thread(*args, **kwargs):
    raise RuntimeError("can't start new thread: " + text("threads"))


def _os_attribute(name):
    message = f"module 'os' has no attribute {name!r}"
    if name in _PROCESS_CALLS:
        raise AttributeError(message + ": " + text("processes"))
    raise AttributeError(message, name=name, obj=os)


def install():
    """Sets the hooks. Once, while the template is built, after everything is imported."""
    sys.meta_path.append(Unknown)
    processes, network = _unsupported("processes"), _unsupported("sockets")
    subprocess.Popen.__init__ = processes
    os.__getattr__ = _os_attribute
    _thread.start_new_thread = _thread.start_joinable_thread = _no_thread
    _thread.start_new = threading._start_joinable_thread = _no_thread
    socket.socket.__init__ = network
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo"):
        for module in (socket, _socket):
            if hasattr(module, name):
                setattr(module, name, network)
    _install_asyncio(processes, network)


def _install_asyncio(processes, network):
    from .loop import Loop

    async def no_process(*args, **kwargs):
        processes()

    async def no_network(*args, **kwargs):
        network()

    for name in ("subprocess_shell", "subprocess_exec"):
        setattr(Loop, name, no_process)
    for name in (
        "getaddrinfo getnameinfo create_connection create_server create_datagram_endpoint "
        "create_unix_connection create_unix_server connect_accepted_socket start_tls"
    ).split():
        setattr(Loop, name, no_network)
    Loop.connect_read_pipe = Loop.connect_write_pipe = no_network
    Loop.add_reader = Loop.add_writer = network
    asyncio.unix_events._UnixDefaultEventLoopPolicy._loop_factory = Loop
    for module in (asyncio, asyncio.unix_events):
        module.SelectorEventLoop = module.EventLoop = Loop
