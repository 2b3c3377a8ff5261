// The kernels' sources as Vitis HLS sees them.
#include "fpga/kernel/digest.cpp"
#include "fpga/kernel/updater.cpp"
