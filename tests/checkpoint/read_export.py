"""Reads the tests' export with h5py: read_export.py EXPORT INDEX MASTERS DTYPE."""

import sys

import h5py
import numpy as np

export, index, masters, dtype = sys.argv[1:]
flat = np.fromfile(masters, np.float32)
with h5py.File(export, "r") as f, h5py.File(index, "r") as i:
    assert f.attrs["format"] == "nearstep export" and f.attrs["step"] == 20
    assert f.attrs["config"] == i.attrs["config"] and f.attrs["parameters"] == i.attrs["parameters"]
    names = list(i["tensors/name"].asstr())
    assert sorted(f) == sorted(names), list(f)
    for name, at in zip(names, i["tensors/offset"][...].tolist(), strict=True):
        values = f[name][...]
        assert values.dtype == np.dtype(dtype), values.dtype
        expected = flat[at : at + values.size].astype(dtype).reshape(values.shape)
        np.testing.assert_array_equal(values, expected, err_msg=name)
