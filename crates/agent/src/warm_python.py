"""A parked python3: started, with what most programs import, and waiting for its one message.

It is the workload already (identity, filter, rules), reads the same bytes as the parked stub, and
becomes `python3 [flags] (-c code | -m module | file | -) arguments` in place. Whatever it cannot
do exactly as a fresh python3 would, it leaves to one: it executes the program. What differs from a
fresh one: more modules are loaded, `sys.flags` are those of `-I`.
"""
import builtins, collections, csv, datetime, errno, functools, gc, hashlib, io, itertools, json
import math, os, pathlib, random, re, resource, runpy, signal, site, socket, struct, subprocess
import sys, tempfile, time, types, urllib.parse

SOCKET, NOTICE = 4, 5
HEADER = struct.Struct("<IIIIIIIHHII24x")
MAGIC, STRINGS_MAX, PAYLOAD_MAX = 0x3158484C, 4096, (1 << 20) + 8192
READY, TTY, FAILED = 1, 2, 3
MESSAGE, TERMINAL, STDIO, CWD, RLIMITS, POSTURE, EXEC = range(1, 8)
PYTHON = os.stat("/usr/bin/python3")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HONOURED = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONNOUSERSITE")


class Refusal(Exception):
    """A step that failed, and its error number."""


def reply(kind, step=0, number=0):
    return struct.pack("<IIi4x", kind, step, number)


def receive(channel):
    """The header's words, the strings and the descriptors; None when nobody needs us any more."""
    fds, data, want = [], b"", HEADER.size
    while len(data) < want:
        part, more, _, _ = socket.recv_fds(channel, want - len(data), 16)
        fds += more
        if not part and not data:
            return None
        if not part:
            raise Refusal(MESSAGE, errno.EPROTO)
        data += part
        if len(data) == HEADER.size == want:
            words = HEADER.unpack(data)
            if words[0] != MAGIC or words[1] & ~1 or words[4] > PAYLOAD_MAX or max(words[2:4]) > STRINGS_MAX:
                raise Refusal(MESSAGE, errno.EPROTO)
            want += words[4]
    strings = data[HEADER.size:].split(b"\0")
    wanted_fds = 0 if words[1] & 1 else 3
    if strings.pop() or len(strings) != 1 + words[2] + words[3] or not words[2] or len(fds) != wanted_fds:
        raise Refusal(MESSAGE, errno.EPROTO)
    return words, strings, fds


def attempt(step, act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        raise Refusal(step, error.errno or errno.EIO) from None
    except ValueError:
        raise Refusal(step, errno.EINVAL) from None


def lower(kind, soft, hard):
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def terminal(rows, columns):
    import fcntl, termios
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, 0x40045431, struct.pack("i", 0))  # TIOCSPTLCK
    own = fcntl.ioctl(master, 0x5441, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)  # TIOCGPTPEER
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    fcntl.ioctl(own, termios.TIOCSCTTY, 0)
    return master, own


def prepare(channel, words, cwd, fds):
    """Limits, descriptors, directory."""
    _, flags, _, _, _, uid, gid, rows, columns, files, seconds = words
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise Refusal(POSTURE, errno.EPERM)
    attempt(RLIMITS, lower, resource.RLIMIT_NOFILE, files, files)
    if seconds:
        attempt(RLIMITS, lower, resource.RLIMIT_CPU, seconds, seconds + 1)
    if flags & 1:
        master, own = attempt(TERMINAL, terminal, rows, columns)
        attempt(TERMINAL, socket.send_fds, channel, [reply(TTY)], [master])
        fds = [own, own, own, master]
    for number, fd in enumerate(fds[:3]):
        attempt(STDIO, os.dup2, fd, number)
    for fd in set(fds):
        os.close(fd)
    attempt(CWD, os.chdir, cwd)
    if not attempt(CWD, os.getcwdb).startswith(b"/"):
        raise Refusal(CWD, errno.EXDEV)


class Invocation:
    """A python3 command line that can be done in place."""

    def __init__(self):
        self.flags, self.kind, self.what, self.argv = set(), None, None, []


def parse(argv):
    """The invocation, or None when it needs a python3 of its own."""
    found, rest = Invocation(), argv[1:]
    while rest and found.kind is None:
        word = rest[0]
        if not word.startswith("-") or word == "-":
            found.kind, found.what, found.argv = "file", word, rest
            break
        rest = rest[1:]
        for at, letter in enumerate(word[1:], 1):
            if letter in "ISuBEsP":
                found.flags.add(letter)
            elif letter in "cm":
                if word[at + 1:]:
                    rest = [word[at + 1:]] + rest
                if not rest:
                    return None
                found.kind, found.what = letter, rest[0]
                found.argv = ["-" + letter] + rest[1:]
                break
            else:
                return None
    return found if found.kind else None


def itself(name):
    """Whether a file is the program that runs here."""
    try:
        return os.path.samestat(os.stat(name), PYTHON)
    except (OSError, ValueError):
        return False


def in_place(argv, env):
    """The invocation if this very python3 is asked for something it can become."""
    name = os.fsdecode(argv[0])
    if "/" not in name:
        paths = os.fsdecode(env[b"PATH"]) if b"PATH" in env else DEFAULT_PATH
        places = (os.path.join(place or ".", name) for place in paths.split(":"))
        name = next((place for place in places if os.access(place, os.X_OK)), "")
    if not os.path.basename(name).startswith("python3") or not itself(name):
        return None
    found = parse([os.fsdecode(word) for word in argv])
    if found is None or any(key.startswith((b"LD_", b"MALLOC_", b"GLIBC_")) for key in env):
        return None
    locale = env.get(b"LC_ALL") or env.get(b"LC_CTYPE") or env.get(b"LANG") or b"C.UTF-8"
    if locale not in (b"C", b"POSIX") and not locale.lower().endswith((b".utf-8", b".utf8")):
        return None
    strange = (key for key in env if key.startswith(b"PYTHON") and os.fsdecode(key) not in HONOURED)
    if not found.flags & {"I", "E"} and any(strange):
        return None
    if found.kind == "file" and found.what == "-" and os.isatty(0):
        return None
    return found


def streams(unbuffered):
    """The standard streams anew: what they are is only known now."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = open(fd, mode + "b", 0 if unbuffered and mode == "w" else -1, closefd=False)
        getattr(raw, "raw", raw).name = f"<{name}>"
        line = mode == "w" and (fd == 2 or os.isatty(fd)) and not unbuffered
        errors = "backslashreplace" if fd == 2 else getattr(sys, name).errors
        text = io.TextIOWrapper(raw, "utf-8", errors, "\n", line, unbuffered and mode == "w")
        text.mode = mode
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def settle(found, env):
    """What a fresh python3 derives from its flags and environment."""
    os.environ.clear()
    os.environb.update(env)
    if b"TZ" in env:
        time.tzset()
    flags = found.flags
    own_env = {} if flags & {"I", "E"} else os.environ
    sys.dont_write_bytecode = "B" in flags or bool(own_env.get("PYTHONDONTWRITEBYTECODE"))
    streams("u" in flags or bool(own_env.get("PYTHONUNBUFFERED")))
    if "S" in flags:
        sys.path[:] = [place for place in sys.path if not place.endswith("-packages")]
        for name in ("exit", "quit", "copyright", "credits", "license", "help"):
            delattr(builtins, name)
    elif not flags & {"I", "s"} and not own_env.get("PYTHONNOUSERSITE"):
        version = "python%d.%d" % sys.version_info[:2]
        place = os.path.join(os.path.expanduser("~"), ".local", "lib", version, "site-packages")
        if os.path.isdir(place):
            site.addsitedir(place)
    places = own_env.get("PYTHONPATH", "")
    sys.path[:0] = [os.path.abspath(place) for place in places.split(":")] if places else []
    if not flags & {"I", "P"}:
        first = {"c": "", "m": os.getcwd()}.get(found.kind)
        if first is None:
            first = "" if found.what == "-" else os.path.dirname(os.path.realpath(found.what))
        sys.path.insert(0, first)
    sys.argv[:] = found.argv


def source(found):
    """Text and name of what is to run; None when it is no plain source file."""
    if found.kind == "c":
        return found.what, "<string>"
    if found.what == "-":
        return sys.stdin.buffer.read(), "<stdin>"
    try:
        if not os.path.isfile(found.what):
            return None
        with open(found.what, "rb") as file:
            text = file.read()
    except OSError:
        return None
    if text.startswith(b"PK\3\4") or found.what.endswith(".pyc"):
        return None
    return text, found.what


def fresh_main(found):
    main = types.ModuleType("__main__")
    main.__builtins__, main.__annotations__ = builtins, {}
    main.__loader__ = type(sys).__loader__ if hasattr(type(sys), "__loader__") else sys.__loader__
    if found.kind == "file" and found.what != "-":
        from importlib.machinery import SourceFileLoader
        main.__loader__ = SourceFileLoader("__main__", found.what)
        main.__file__, main.__cached__ = found.what, None
    sys.modules["__main__"] = main
    return main


def perform(found, text):
    main = fresh_main(found)
    if found.kind == "m":
        runpy._run_module_as_main(found.what)
    else:
        exec(compile(text[0], text[1], "exec", 0, True), main.__dict__)


def run(found, text):
    """Runs it as `__main__`. An exception that comes out is shown as a fresh python3 shows it."""
    try:
        perform(found, text)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code in (run.__code__, perform.__code__):
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            end_by(signal.SIGINT)
        failed = True
    else:
        failed = False
    if failed:
        sys.exit(1)


def end_by(number):
    import atexit
    atexit._run_exitfuncs()
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def natively(argv, env):
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    name, worst = argv[0], errno.ENOENT
    places = [b""] if b"/" in name else env.get(b"PATH", os.fsencode(DEFAULT_PATH)).split(b":")
    for place in places if name else []:
        path = name if b"/" in name else (place or b".") + b"/" + name
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise Refusal(EXEC, error.errno) from None
            if error.errno == errno.EACCES:
                worst = errno.EACCES
    raise Refusal(EXEC, worst)


def rehearse():
    """Goes the way of a claim, from the message to the end of a program, with the null device for
    its streams: what is done for the first time costs a multiple. All that this changes a claim sets
    again, but the path of modules."""
    code = "import json, re\nprint(json.dumps({'a': [1.5, 'b']}), re.compile(r'(\\w+)\\s*=\\s*(\\d+)'))"
    argv = [b"/usr/bin/python3", b"-c", os.fsencode(code)]
    entries = [b"HOME=/", b"LANG=C.UTF-8", b"PATH=/usr/bin:/bin"]
    payload = b"\0".join([b"/", *argv, *entries, b""])
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    head = MAGIC, 0, len(argv), len(entries), len(payload), os.getuid(), os.getgid(), 0, 0, files, 0
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    path, main = sys.path[:], sys.modules["__main__"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [HEADER.pack(*head) + payload], [null] * 3)
        found, env, text = take(ours, receive(ours))
        settle(found, env)
        perform(found, text)
        sys.stdout.flush()
    os.close(null)
    sys.path[:], sys.modules["__main__"] = path, main


def take(channel, message):
    """What is to be done, its environment, and its text where that is read before the channel is closed.
    A program that is another one's business is executed here."""
    words, strings, fds = message
    argv = strings[1:1 + words[2]]
    env = dict(entry.split(b"=", 1) for entry in strings[1 + words[2]:] if b"=" in entry)
    prepare(channel, words, strings[0], fds)
    found = in_place(argv, env)
    # Standard input is read when the channel is closed: it may take its time.
    late = found and (found.kind == "m" or (found.kind, found.what) == ("file", "-"))
    text = source(found) if found and not late else None
    if not (late or text):
        natively(argv, env)
    sys.orig_argv[:] = [os.fsdecode(word) for word in argv]
    return found, env, text


def wait():
    """Parks, takes the message, and gives what is to run in place."""
    channel = socket.socket(fileno=SOCKET)
    os.set_inheritable(SOCKET, False)
    rehearse()
    rehearse()
    gc.collect()
    gc.freeze()
    channel.sendall(reply(READY))
    os.write(NOTICE, bytes(8))
    os.close(NOTICE)
    try:
        message = receive(channel)
        if message is None:
            os._exit(0)
        found, env, text = take(channel, message)
        settle(found, env)
    except Refusal as refusal:
        step, number = refusal.args
        channel.sendall(reply(FAILED, step, number))
        os._exit(127 if (step, number) == (EXEC, errno.ENOENT) else 126)
    channel.close()
    return found, source(found) if text is None and found.kind == "file" else text


run(*wait())
