"""
Makes the root file system of the sandbox: what Python and its libraries need, and nothing else of this machine.

    build_root.py ROOT

`ROOT/opt/site` holds the libraries already. Adds the interpreter that runs this, its standard library, the shared
libraries of all of them, two users and the mount points; byte code and matplotlib's font cache are made here, because
inside nothing can be written. Runs with the rights of whoever prepares, on files that are trusted.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import stat
import subprocess
import sys
import sysconfig

import libraries

PYTHON, SITE, SHARED, FONT_CACHE = "opt/python", "opt/site", "opt/lib", "opt/matplotlib"
# Fallback font of plots, in the directory where matplotlib finds fonts (shared/sandbox/python/fonts.py).
CJK_PACKAGE, FONTS_DIRECTORY = "paperang_p2_fonts_cjk", "matplotlib/mpl-data/fonts/ttf"
# Data of the locale that LANG names, found through LOCPATH. glibc has no built-in C.UTF-8: without these files setlocale(LC_ALL, "") fails.
LOCALE_TARGET = "opt/locale/C.utf8"
LOCALE_SOURCES = ("/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8")
MOUNT_POINTS = ("dev", "proc", "run", "tmp", "opt/sandbox")
USERS = {
    "etc/passwd": "nobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin\n",
    "etc/group": "nogroup:x:65534:\n",
}
# Nothing a program can use here: tests, tools for people, screens, terminals, other languages.
LEFT_OUT = {
    "test", "tests", "idlelib", "ensurepip", "venv", "tkinter", "turtledemo", "turtle.py", "lib2to3", "pydoc_data",
    "site-packages", "dist-packages", "__pycache__", "sitecustomize.py", "__phello__",
}  # fmt: skip
LEFT_OUT_STARTS = ("config-", "_test", "_tkinter", "_curses", "_dbm", "_gdbm", "readline", "_xx", "xx", "nis.")
SLIM_DIRECTORIES = {"tests", "sample_data", "testing_data", "bin", "__pycache__"}
# numpy.testing, which scipy imports, has a part of itself there.
KEPT = ("numpy/_core/tests",)
SLIM_SUFFIXES = (".pyi", ".pyx", ".pxd", ".h", ".c", ".a")
# Loaded when a thread ends, though nothing names it (pthread_exit of glibc).
ALSO_SHARED = ("libgcc_s.so.1",)
FONTS = """
import sys
sys.path.insert(0, sys.argv[1])
import matplotlib.font_manager as fonts
find = fonts.findSystemFonts
# Its own, and none of this machine's: they are not there inside.
fonts.findSystemFonts = lambda paths=None, fontext="ttf": find(paths, fontext) if paths else []
fonts._load_fontmanager(try_read_cache=False)
"""


def main(root: str) -> None:
    """Fills a root directory that holds the libraries."""
    for path in (*MOUNT_POINTS, "etc", SHARED, FONT_CACHE):
        os.makedirs(os.path.join(root, path), exist_ok=True)
    for path, text in USERS.items():
        with open(os.path.join(root, path), "w") as file:
            file.write(text)
    slim(os.path.join(root, SITE))
    place_cjk_font(os.path.join(root, SITE))
    copy_locale(root)
    copy_python(os.path.join(root, PYTHON))
    libraries.copy_needed(root, os.path.join(root, SHARED), ALSO_SHARED)
    make_font_cache(root)
    compile_all(root)
    let_all_read(root)


def copy_python(target: str) -> None:
    """The interpreter and its standard library, in the layout by which it finds its own place."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = os.path.join(target, sys.platlibdir, version)
    os.makedirs(os.path.join(target, "bin"), exist_ok=True)
    shutil.copy(os.path.realpath(sys.executable), os.path.join(target, "bin", "python3"))
    for source in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        # A distribution may have links in it that lead nowhere.
        shutil.copytree(source, library, ignore=_left_out, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    dynamic = sysconfig.get_config_var("DESTSHARED")
    if dynamic and os.path.isdir(dynamic):
        shutil.copytree(dynamic, os.path.join(library, "lib-dynload"), ignore=_left_out, dirs_exist_ok=True)


def slim(site: str) -> None:
    """Takes away what no program imports."""
    for directory, directories, files in os.walk(site):
        for name in SLIM_DIRECTORIES.intersection(directories):
            if os.path.join(directory, name).endswith(KEPT):
                continue
            shutil.rmtree(os.path.join(directory, name))
            directories.remove(name)
        for name in files:
            if name.endswith(SLIM_SUFFIXES):
                os.remove(os.path.join(directory, name))


def place_cjk_font(site: str) -> None:
    """Moves the font out of its package, of which nothing else is used."""
    source = os.path.join(site, CJK_PACKAGE, "fonts")
    if os.path.isdir(source):
        for name in os.listdir(source):
            shutil.move(os.path.join(source, name), os.path.join(site, FONTS_DIRECTORY, name))
        shutil.rmtree(os.path.join(site, CJK_PACKAGE))


def copy_locale(root: str) -> None:
    """A system without these files, such as one with musl, needs none."""
    source = next(filter(os.path.isdir, LOCALE_SOURCES), None)
    if source is not None:
        shutil.copytree(source, os.path.join(root, LOCALE_TARGET), dirs_exist_ok=True)


def make_font_cache(root: str) -> None:
    """Without one each start would look through all fonts."""
    cache = os.path.join(root, FONT_CACHE)
    variables = {**os.environ, "MPLCONFIGDIR": cache, "MPLBACKEND": "Agg"}
    command = [sys.executable, "-I", "-B", "-c", FONTS, os.path.join(root, SITE)]
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(cache, "matplotlibrc"), "w") as file:
        file.write("backend: Agg\nfigure.max_open_warning: 0\n")


def compile_all(root: str) -> None:
    """Byte code that is not compared with its source, under the paths that are seen inside."""
    for part in (PYTHON, SITE):
        compileall.compile_dir(
            os.path.join(root, part),
            quiet=2,
            workers=os.cpu_count() or 1,
            stripdir=root,
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def let_all_read(root: str) -> None:
    """The sandbox's user owns nothing of it."""
    for directory, _, files in os.walk(root):
        os.chmod(directory, 0o755)
        for name in files:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                is_program = os.stat(path).st_mode & stat.S_IXUSR
                os.chmod(path, 0o755 if is_program else 0o644)


def _left_out(_directory: str, names: list[str]) -> set[str]:
    return {name for name in names if name in LEFT_OUT or name.startswith(LEFT_OUT_STARTS)}


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main(os.path.abspath(sys.argv[1]))
