"""The files of the interpreter and of baked packages, in memory.

A snapshot has no file system of its own. `sys.path` keeps the two folders a Python has, and `hook`
answers for them from memory: imports, `python -m`, source lines in tracebacks, package data
(`importlib.resources`, `pkgutil.get_data`) and `importlib.metadata` work as on disk. What a run
preopens is on disk and is none of this module's business.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.resources.abc
import importlib.util
import io
import os
import zlib

LIBRARY = "/python"
PACKAGES = LIBRARY + "/site-packages"

# Path to its compressed bytes, and folder to the names in it.
_files: dict[str, bytes] = {}
_folders: dict[str, set[str]] = {}


def add(path, content):
    """Keeps one file under `path`, an absolute path below `LIBRARY`."""
    _files[path] = zlib.compress(content, 9)
    while path != LIBRARY:
        path, name = path.rsplit("/", 1)
        _folders.setdefault(path, set()).add(name)


def remove(stem):
    """Forgets the module or package whose path without suffix is `stem`."""
    for path in [path for path in _files if path == stem + ".py" or path.startswith(stem + "/")]:
        del _files[path]
    for path in [path for path in _folders if path == stem or path.startswith(stem + "/")]:
        del _folders[path]
    folder, name = stem.rsplit("/", 1)
    _folders[folder] -= {name, name + ".py"}


def read(path):
    """The bytes of the file; `FileNotFoundError` if there is none."""
    try:
        return zlib.decompress(_files[path])
    except KeyError:
        raise FileNotFoundError(2, "no such file in the template", path) from None


def module_file(folder, name):
    """Path of the source of module `name` in `folder`, or None."""
    for path in (f"{folder}/{name}/__init__.py", f"{folder}/{name}.py"):
        if path in _files:
            return path
    return None


def modules(folder, prefix=""):
    """Names of all modules below `folder`, packages before what is in them."""
    for name in sorted(_folders.get(folder, ())):
        stem = name.removesuffix(".py")
        if name != stem and stem != "__init__" and f"{folder}/{name}" in _files:
            yield prefix + stem
        elif name.isidentifier() and f"{folder}/{name}" in _folders:
            if module_file(folder, name):
                yield prefix + name
            yield from modules(f"{folder}/{name}", prefix + name + ".")


def hook(path):
    """For `sys.path_hooks`: a finder for folders of the archive."""
    if path == LIBRARY or path in _folders:
        return Finder(path)
    raise ImportError("not a folder of the template", path=path)


class Finder:
    """Finds modules in one folder of the archive."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, fullname, target=None):
        name = fullname.rpartition(".")[2]
        inner = f"{self.folder}/{name}"
        path = module_file(self.folder, name)
        if path:
            return importlib.util.spec_from_file_location(
                fullname,
                path,
                loader=Loader(fullname, path),
                submodule_search_locations=[inner] if path.endswith("/__init__.py") else None,
            )
        if inner in _folders:
            spec = importlib.machinery.ModuleSpec(fullname, None)
            spec.submodule_search_locations = [inner]
            return spec
        return None

    def invalidate_caches(self):
        """The archive never changes."""

    def iter_modules(self, prefix=""):
        """For `pkgutil`."""
        for name in sorted(_folders.get(self.folder, ())):
            stem = name.removesuffix(".py")
            if stem.isidentifier() and stem != "__init__" and module_file(self.folder, stem):
                yield prefix + stem, f"{self.folder}/{name}" in _folders


class Loader(importlib.abc.SourceLoader):
    """Loads one module of the archive."""

    def __init__(self, fullname, path):
        self.name = fullname
        self.path = path

    def get_filename(self, fullname):
        return self.path

    def get_data(self, path):
        return read(os.fspath(path))

    def get_resource_reader(self, fullname):
        return Resources(self.path.rpartition("/")[0])


class Resources(importlib.resources.abc.TraversableResources):
    """Data files beside a module."""

    def __init__(self, folder):
        self._folder = folder

    def files(self):
        return Node(self._folder)


class Node(importlib.resources.abc.Traversable):
    """A path in the archive, with as much of `pathlib.Path` as resources and metadata need."""

    def __init__(self, path):
        self._path = path

    def __str__(self):
        return self._path

    @property
    def name(self):
        return self._path.rpartition("/")[2]

    @property
    def parent(self):
        return Node(self._path.rpartition("/")[0])

    def exists(self):
        return self.is_file() or self.is_dir()

    def is_file(self):
        return self._path in _files

    def is_dir(self):
        return self._path in _folders

    def iterdir(self):
        return (self / name for name in sorted(_folders.get(self._path, ())))

    def joinpath(self, *parts):
        return Node(os.path.normpath("/".join([self._path, *map(str, parts)])))

    def __truediv__(self, part):
        return self.joinpath(part)

    def open(self, mode="r", *args, **kwargs):
        content = io.BytesIO(read(self._path))
        return content if "b" in mode else io.TextIOWrapper(content, *args, **kwargs)

    def read_bytes(self):
        return read(self._path)

    def read_text(self, encoding="utf-8", errors="strict"):
        return read(self._path).decode(encoding, errors)


class Distributions(importlib.metadata.DistributionFinder):
    """Metadata of baked packages; finds no modules."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None

    @classmethod
    def find_distributions(cls, context=importlib.metadata.DistributionFinder.Context()):
        wanted = importlib.metadata.Prepared(context.name)
        for name in sorted(_folders.get(PACKAGES, ())):
            stem = name.removesuffix(".dist-info")
            if stem == name:
                continue
            found = importlib.metadata.Prepared.normalize(stem.partition("-")[0])
            if wanted.normalized in (None, found):
                yield importlib.metadata.PathDistribution(Node(f"{PACKAGES}/{name}"))
