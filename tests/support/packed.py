"""Any values of MessagePack."""

import msgspec
from hypothesis import strategies as st

_LENGTHS = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 255, 256, 65_535, 65_536])
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from(
        [-129, -128, -33, -32, -1, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32]
    ),
    st.floats(),
    st.text(max_size=5),
    st.builds(lambda n: "x" * n, _LENGTHS),
    st.builds(lambda n: b"\xc1" * n, _LENGTHS),
    st.builds(lambda n: msgspec.msgpack.Ext(5, b"\xc1" * n), _LENGTHS),
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(st.text(max_size=3), inner, max_size=20)
        | st.builds(lambda n: [1] * n, _LENGTHS)
        | st.builds(lambda n: dict.fromkeys(map(str, range(n))), _LENGTHS)
    ),
    max_leaves=6,
)
