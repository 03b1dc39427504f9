"""Compile the kernel of the passes where there is a compiler; the package works without it.

``python hatch_build.py`` compiles it in place, as an editable installation does.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

SOURCE = Path(__file__).parent / "src" / "quadlin" / "core" / "_passes.c"
LIBRARY = SOURCE.with_suffix(".so")
FLAGS = ["-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared"]


def compilers() -> list[list[str]]:
    """Return the commands of the C compilers that there are, the preferred one first."""
    named = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    commands = [shlex.split(name) for name in named if name]
    return [command for command in commands if command and shutil.which(command[0])]


def compiled() -> bool:
    """Compile the kernel beside its source and tell whether that worked; an old one is removed."""
    LIBRARY.unlink(missing_ok=True)
    sources = sorted(SOURCE.parent.glob("_passes*.[ch]"))
    digest = blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / LIBRARY.name
        for command in compilers():
            arguments = [*FLAGS, f'-DSOURCE_DIGEST="{digest}"', str(SOURCE), "-o", str(made)]
            with suppress(OSError):
                result = subprocess.run([*command, *arguments], capture_output=True, check=False)
                if result.returncode == 0:
                    shutil.copyfile(made, LIBRARY)
                    return True
    return False


if __name__ == "__main__":
    sys.exit(0 if compiled() else "No C compiler could compile the kernel: numpy does its work.")

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # noqa: E402
from packaging.tags import sys_tags  # noqa: E402


class CompiledKernel(BuildHookInterface):
    """Put the kernel into the wheel, which then is of this platform, but of any Python."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile before the wheel is put together."""
        if not compiled() or version == "editable":
            return
        platforms = (tag.platform for tag in sys_tags())
        portable = ("manylinux", "musllinux")  # nobody has checked that it is
        platform = next(name for name in platforms if not name.startswith(portable))
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))
