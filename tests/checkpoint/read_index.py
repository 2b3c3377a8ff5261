"""Reads the tests' checkpoint through the index's virtual datasets: read_index.py INDEX MASTER MOMENT1 MOMENT2."""

import sys

import h5py
import numpy as np

index, arrays = sys.argv[1], sys.argv[2:]
with h5py.File(index, "r") as f:
    for name, path in zip(("master", "moment1", "moment2"), arrays, strict=True):
        view = f["state"][name]
        assert view.is_virtual and view.dtype == np.float32 and view.shape == (7, 65536), view
        assert np.isnan(view.fillvalue)
        assert view[...].tobytes() == open(path, "rb").read(), name
    about = dict(f.attrs)
    assert about["format"] == "nearstep checkpoint" and about["format_version"] == 1
    assert about["step"] == 20 and about["generation"] == 19 and about["loss_scale"] == 4096.5
    assert about["config"] == '[train]\nsteps = 40  # "quoted", ü\n' and about["site"] == ""
    table = f["tensors"]
    shapes = [tuple(s[:d]) for s, d in zip(table["shape"][...], table["dimensions"][...], strict=True)]
    names = list(table["name"].asstr())
    assert names[2] == "h.0.attn.c_attn.weight" and shapes[2] == (3, 211, 257), (names, shapes)
    # A tensor is read from the flat view by its offset.
    at, size = int(table["offset"][2]), int(np.prod(shapes[2]))
    flat = np.fromfile(arrays[0], np.float32)
    tensor = f["state/master"][...].reshape(-1)[at : at + size].reshape(shapes[2])
    assert tensor.tobytes() == flat[at : at + size].tobytes()
    assert list(f["ranks/file"].asstr())[1] == "step-00000020.attempt-0.rank-00001.h5"
    assert f["ranges"][...].tolist() == [[0, 0, 2], [0, 4, 5], [1, 2, 3], [2, 3, 4], [2, 5, 7]]
