"""Builds the engine's C++ kernels beside the Python files, if there is a compiler; all else is in pyproject.toml.

The library has no Python or PyTorch in it (it is called through plain pointers), so one build serves them all. A failed
build is not a failed installation: the reference model answers instead, more slowly, and `bertie doctor` says so.
"""

import platform
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "src/bertie/engine/cpu/csrc"
FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
X86 = {
    "kernels_avx512.cpp": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma",
                           "-mprefer-vector-width=512"],
    "kernels_avx2.cpp": ["-mavx2", "-mfma"],
}  # fmt: skip
FILES = ["encoder.cpp", "team.cpp", "kernels_portable.cpp"]


class BuildKernels(build_ext):
    def build_extension(self, ext):
        try:
            objects = []
            for source in ext.sources:
                name = source.rpartition("/")[2]
                objects += self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    extra_postargs=FLAGS + X86.get(name, []),
                    depends=ext.depends,
                )
            self.compiler.link_shared_object(
                objects, self.get_ext_fullpath(ext.name), target_lang="c++", extra_postargs=["-lpthread"]
            )
        except Exception as error:
            print(
                f"bertie: the CPU kernels were not built ({error}); the reference model will be used.", file=sys.stderr
            )


is_x86 = platform.machine().lower() in ("x86_64", "amd64")
names = FILES + (list(X86) if is_x86 else [])
kernels = Extension(
    "bertie.engine.cpu._kernels",
    [f"{SOURCES}/{name}" for name in names],
    depends=[f"{SOURCES}/{name}" for name in ("kernels.h", "kernels.inl", "simd.h", "team.h")],
    optional=True,
)
setup(
    ext_modules=[] if sys.platform == "win32" else [kernels],
    cmdclass={"build_ext": BuildKernels},
)
