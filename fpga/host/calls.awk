# Reads what `nm -u` says of the sources that call XRT, and writes a line for each function of XRT's. CMakeLists.txt
# uses it.
$1 == "U" && $2 ~ /^_ZNK?3xrt/ && !seen[$2]++ { print "CALL(" count++ ", " $2 ")" }
