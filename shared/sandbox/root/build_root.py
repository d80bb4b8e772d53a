"""
Makes the root file system of the sandbox: Python with its libraries, and no other files of this machine.

    build_root.py ROOT

`ROOT/opt/site` already contains the Python libraries. This script adds the interpreter that runs it, the standard
library, the needed shared libraries, two users and the mount points. The script also writes byte code and matplotlib's
font cache, because a program in the sandbox cannot write to the root. All files that the script reads are trusted.
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
# Data of the locale that LANG names, found through LOCPATH. glibc has no built-in C.UTF-8, so without these files setlocale(LC_ALL, "") fails.
LOCALE_TARGET = "opt/locale/C.utf8"
LOCALE_SOURCES = ("/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8")
MOUNT_POINTS = ("dev", "proc", "run", "tmp", "opt/sandbox")
USERS = {
    "etc/passwd": "nobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin\n",
    "etc/group": "nogroup:x:65534:\n",
}
# Parts of the standard library that are useless in the sandbox: tests, tools, graphical interfaces, terminals, build files.
LEFT_OUT = {
    "test", "tests", "idlelib", "ensurepip", "venv", "tkinter", "turtledemo", "turtle.py", "lib2to3", "pydoc_data",
    "site-packages", "dist-packages", "__pycache__", "sitecustomize.py", "__phello__",
}  # fmt: skip
LEFT_OUT_STARTS = ("config-", "_test", "_tkinter", "_curses", "_dbm", "_gdbm", "readline", "_xx", "xx", "nis.")
SLIM_DIRECTORIES = {"tests", "sample_data", "testing_data", "bin", "__pycache__"}
# Kept although its name is in SLIM_DIRECTORIES: scipy imports numpy.testing, which imports this directory.
KEPT = ("numpy/_core/tests",)
SLIM_SUFFIXES = (".pyi", ".pyx", ".pxd", ".h", ".c", ".a")
# Not listed by ldd, because pthread_exit of glibc loads this library only when a thread ends.
ALSO_SHARED = ("libgcc_s.so.1",)
FONTS = """
import sys
sys.path.insert(0, sys.argv[1])
import matplotlib.font_manager as fonts
find = fonts.findSystemFonts
# Only the fonts of matplotlib are cached. The fonts of this machine are missing in the sandbox.
fonts.findSystemFonts = lambda paths=None, fontext="ttf": find(paths, fontext) if paths else []
fonts._load_fontmanager(try_read_cache=False)
"""


def main(root: str) -> None:
    """Completes a root directory that already contains the Python libraries."""
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
    """Copies the interpreter and its standard library, in the layout in which the interpreter finds its library."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = os.path.join(target, sys.platlibdir, version)
    os.makedirs(os.path.join(target, "bin"), exist_ok=True)
    shutil.copy(os.path.realpath(sys.executable), os.path.join(target, "bin", "python3"))
    for source in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        # The library of a Linux distribution may contain dangling symbolic links.
        shutil.copytree(source, library, ignore=_left_out, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    dynamic = sysconfig.get_config_var("DESTSHARED")
    if dynamic and os.path.isdir(dynamic):
        shutil.copytree(dynamic, os.path.join(library, "lib-dynload"), ignore=_left_out, dirs_exist_ok=True)


def slim(site: str) -> None:
    """Removes files of the libraries that no program imports."""
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
    """Moves the font to the fonts of matplotlib, and removes the rest of its package."""
    source = os.path.join(site, CJK_PACKAGE, "fonts")
    if os.path.isdir(source):
        for name in os.listdir(source):
            shutil.move(os.path.join(source, name), os.path.join(site, FONTS_DIRECTORY, name))
        shutil.rmtree(os.path.join(site, CJK_PACKAGE))


def copy_locale(root: str) -> None:
    """Copies the locale. A system without these files, such as one with musl, does not need them."""
    source = next(filter(os.path.isdir, LOCALE_SOURCES), None)
    if source is not None:
        shutil.copytree(source, os.path.join(root, LOCALE_TARGET), dirs_exist_ok=True)


def make_font_cache(root: str) -> None:
    """Writes the font cache of matplotlib. Without the cache, each start would read all fonts."""
    cache = os.path.join(root, FONT_CACHE)
    variables = {**os.environ, "MPLCONFIGDIR": cache, "MPLBACKEND": "Agg"}
    command = [sys.executable, "-I", "-B", "-c", FONTS, os.path.join(root, SITE)]
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(cache, "matplotlibrc"), "w") as file:
        file.write("backend: Agg\nfigure.max_open_warning: 0\n")


def compile_all(root: str) -> None:
    """Compiles all modules to byte code, with the paths of the sandbox. Python never compares the result with the source."""
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
    """Makes all files readable for every user, because the user of the sandbox owns none of them."""
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
