"""Builds two C++ libraries beside the Python files that use them, if there is a compiler. All else: pyproject.toml.

One is the engine's kernels, the other the tokenizer of many texts. They have no Python or PyTorch in them (they are
called through plain pointers), so one build serves them all. A failed build is not a failed installation: the reference
model and the Rust tokenizer answer instead, more slowly, and `bertie doctor` says so. A release sets BERTIE_NATIVE=1
for a wheel that must hold the libraries, and BERTIE_NATIVE=0 for the one that must not.
"""

import os
import platform
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = "src/bertie/engine/cpu/csrc"
FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-maybe-uninitialized",
         "-Wno-psabi"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mprefer-vector-width=512"]
X86 = {
    "kernels_amx.cpp": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
    "kernels_avx512_bf16.cpp": [*AVX512, "-mavx512bf16"],
    "kernels_avx512.cpp": AVX512,
    "kernels_avx2.cpp": ["-mavx2", "-mfma"],
}
ARM = {
    "kernels_neon_i8mm.cpp": ["-march=armv8.2-a+dotprod+i8mm+bf16"],
    "kernels_neon_dotprod.cpp": ["-march=armv8.2-a+dotprod"],
}
# Instructions that a compiler from before 2020 does not know, and what the rest is told then.
NEWEST = {
    "kernels_amx.cpp": "-DBERTIE_NO_AMX",
    "kernels_avx512_bf16.cpp": "-DBERTIE_NO_BF16",
    "kernels_neon_i8mm.cpp": "-DBERTIE_NO_I8MM",
}
HEADERS = ["kernels.h", "lookup.h", "model.h", "nodes.h", "owned.h", "simd.h", "team.h", "walk.h"]
INCLUDED = ["kernels.inl", "attention.inl", "half.inl", "int8.inl", "tiles.inl"]
PLAIN = {"kernels_tiles.cpp": ["-O1"], "kernels_pairs.cpp": ["-O1"]}  # for tests: quick to build is what matters
FILES = ["interface.cpp", "encoder.cpp", "lookup.cpp", "team.cpp", "nodes.cpp", "dispatch.cpp", "kernels_portable.cpp"]


NATIVE = os.environ.get("BERTIE_NATIVE", "" if sys.platform != "win32" else "0")


class BuildIfPossible(build_ext):
    def get_ext_filename(self, name):
        """Without Python's version in it: ctypes opens the libraries, any Python can."""
        return name.replace(".", "/") + ".so"

    def build_extension(self, ext):
        try:
            objects, flags = [], [*FLAGS, *(["-DBERTIE_OLD_NAMES"] if NATIVE == "1" else [])]
            for source in ext.sources:
                name = source.rpartition("/")[2]
                try:
                    objects += self.compiler.compile(
                        [source],
                        output_dir=self.build_temp,
                        extra_postargs=flags + OWN.get(name, []) + PLAIN.get(name, []),
                        depends=ext.depends,
                    )
                except CompileError:
                    if name not in NEWEST:
                        raise
                    flags.append(NEWEST[name])
            self.compiler.link_shared_object(
                objects, self.get_ext_fullpath(ext.name), target_lang="c++", extra_postargs=["-lpthread"]
            )
        except Exception as error:
            if NATIVE == "1":
                raise
            print(f"bertie: {ext.name} was not built ({error}); bertie works without it, more slowly.", file=sys.stderr)


class AnyPython(bdist_wheel):
    """One wheel for all Pythons of a platform, as the libraries know nothing of Python."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


machine = platform.machine().lower()
OWN = X86 if machine in ("x86_64", "amd64") else ARM if machine in ("aarch64", "arm64") else {}
names = [*OWN, *FILES, *PLAIN]
kernels = Extension(
    "bertie.engine.cpu._kernels",
    [f"{KERNELS}/{name}" for name in names],
    depends=[f"{KERNELS}/{name}" for name in [*HEADERS, *INCLUDED]],
    optional=True,
)
wordpiece = Extension(
    "bertie.text.wordpiece._wordpiece", ["src/bertie/text/wordpiece/csrc/wordpiece.cpp"], optional=True
)
setup(
    ext_modules=[] if NATIVE == "0" else [kernels, wordpiece],
    cmdclass={"build_ext": BuildIfPossible, "bdist_wheel": AnyPython},
)
