// The kernels' sources as Vitis HLS compiles them.
#include "fpga/kernel/digest.cpp"
#include "fpga/kernel/updater.cpp"
