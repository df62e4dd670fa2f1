"""kv.sim.run: PTX on NumPy arrays; what goes wrong is an exception with the message."""

from __future__ import annotations

import numpy as np
import pytest

import kvcache as kv

SCALE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
.reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.f32 %f1, [a]; ld.param.u32 %r5, [n];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r4, %r2, %r3, %r1;
setp.ge.u32 %p1, %r4, %r5;
@%p1 bra END;
mul.wide.u32 %rd3, %r4, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
ld.global.f32 %f2, [%rd4];
mul.f32 %f3, %f2, %f1;
st.global.f32 [%rd5], %f3;
END: ret;
}
"""


def launch(text: str = SCALE, n: int = 100, **more):
    """x = 0, 1, ...; y = 3 x."""
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    counters = kv.sim.run(text, "scale", 4, (32, 1, 1), [x, y, np.float32(3), np.uint32(n)], **more)
    return x, y, counters


def test_arrays_change_in_place():
    x, y, counters = launch(counters=True)
    np.testing.assert_array_equal(y, 3 * x)
    assert counters["global_load"]["bytes"] == 400
    assert counters["global_store"]["sectors"] == 13


def test_violation_has_kind_line_and_message():
    with pytest.raises(kv.sim.Violation, match=r"byte 400 of .*block \(3,0,0\) thread \(4,0,0\)") as e:
        launch(n=128)
    assert (e.value.kind, e.value.line) == ("bounds", 12)
    assert "ld.global.f32" in str(e.value)


def test_step_limit_is_a_violation():
    with pytest.raises(kv.sim.Violation) as e:
        launch(SCALE.replace("END: ret;", "END: bra END;"), max_steps=10000)
    assert e.value.kind == "steps"


def test_checks_are_chosen():
    text = SCALE.replace("ld.global.f32 %f2, [%rd4];", "")
    with pytest.raises(kv.sim.Violation) as e:
        launch(text)
    assert e.value.kind == "init"
    launch(text, checks="bounds,race")


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        (SCALE.replace("mul.f32", "frob.f32"), {}, r"kernel.ptx:13: error: .*frob"),
        (SCALE.replace("}", ""), {}, "is not closed"),
        (SCALE, {"target": "sm_75"}, "cannot run a file for sm_80"),
        (SCALE, {"shared": 1 << 20}, "shared memory"),
        (SCALE, {"checks": "everything"}, "unknown check"),
        (SCALE, {"cluster": (3, 1, 1)}, "multiple of the cluster"),
    ],
)
def test_what_cannot_run_is_an_error(text, more, why):
    with pytest.raises(kv.sim.SimError, match=why) as e:
        launch(text, **more)
    assert not isinstance(e.value, kv.sim.Violation)


def test_wrong_arguments():
    x = np.zeros(100, np.float32)
    with pytest.raises(kv.sim.SimError, match="has 4 parameters, got 1"):
        kv.sim.run(SCALE, "scale", 1, 32, [x])
    with pytest.raises(kv.sim.SimError, match="no entry 'other'.*scale"):
        kv.sim.run(SCALE, "other", 1, 32, [x])
    with pytest.raises(ValueError, match="argument 0: expected an array"):
        kv.sim.run(SCALE, "scale", 1, 32, [[1, 2]])
    with pytest.raises(ValueError, match="argument 0: expected a writable C-contiguous"):
        kv.sim.run(SCALE, "scale", 1, 32, [x[::2]])
