# The C++ program and library, built by Spack from a checkout:
#   spack repo add packaging/spack && spack dev-build nearstep@main
from spack.package import *


class Nearstep(CMakePackage):
    """Training with the optimizer state in storage, and the optimizer step near it."""

    homepage = "https://arxiv.org/abs/2403.06664"
    license("Apache-2.0")
    version("main")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("openmpi@4.1:")
    depends_on("hdf5~mpi")
    depends_on("tomlplusplus")
    depends_on("cli11")
    depends_on("nlohmann-json")
    depends_on("xxhash")
    depends_on("liburing")
    depends_on("hwloc@2:")
    depends_on("py-torch@2.4:")

    def cmake_args(self):
        return [self.define("BUILD_TESTING", False), self.define("NEARSTEP_PYTHON", self.spec["python"].command.path)]
