"""Mathematical functions of f32 and f64 on LLVM vectors.

The common functions of f32 (exp, exp2, log, log2, log10, sin, cos, tanh, erf), and exp, exp2 and the logarithms of f64,
are polynomials without branches, within 2 units in the last place; infinities, NaNs, subnormals and signed zeros come
out as in C. The coefficients are minimax fits of relative error, found with Remez' exchange in 50 digits and rounded.
The rest are compositions of these or calls of the C library, lane by lane.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from .lanes import Lanes
from .values import size_of, storage, vtype

Function = Callable[..., Lanes]
INF, NAN = float("inf"), float("nan")

UNROLLED = 8  # C calls written out one by one for at most this many lanes; beyond, they loop over a buffer

# Bits of the fraction, bias of the exponent
FRACTION = {"f32": 23, "f64": 52}
BIAS = {"f32": 127, "f64": 1023}
# Beyond these ends exp and exp2 are 0 or infinity
EXP_RANGE = {"f32": (-104.5, 89.0), "f64": (-746.0, 710.0)}
EXP2_RANGE = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}
# Numbers as the nearest float and what it lacks, per type
ONE = {"f32": (1.0, 0.0), "f64": (1.0, 0.0)}
LN_2 = {"f32": (0.6931471824645996, -1.9046542121e-09), "f64": (0.6931471805599453, 2.3190468138462996e-17)}
LOG2_E = {"f32": (1.4426950216293335, 1.9259630335e-08), "f64": (1.4426950408889634, 2.0355273740931033e-17)}
LOG10_E = {"f32": (0.4342944920063019, -1.0103049952e-08), "f64": (0.4342944819032518, 1.098319650216765e-17)}
LOG10_2 = {"f32": (0.3010300099849701, -1.4320988839e-08), "f64": (0.3010299956639812, -2.8037281277851704e-18)}
PI_HALF = (1.5707963267948966, 6.123233995736766e-17)

# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, and (2^r - 1) / r for |r| <= 1/2; lowest power first, as everywhere
EXP = {
    "f32": (0.4999999404, 0.1666651964, 0.04166840017, 0.008368850686, 0.001381434966),
    "f64": (0.5000000000000011, 0.16666666666666408, 0.041666666666528164, 0.00833333333349691, 0.00138888889442311,
            0.00019841269502699543, 2.4801492408013583e-05, 2.755758851458497e-06, 2.7630516283726045e-07,
            2.4999813212103924e-08),
}  # fmt: skip
EXP2 = {
    "f32": (0.6931471825, 0.2402264774, 0.05550331995, 0.009618439712, 0.001339913229, 0.0001535323245),
    "f64": (0.6931471805599453, 0.24022650695910133, 0.05550410866482006, 0.009618129107593581, 0.0013333558146779877,
            0.00015403530457861432, 1.525273348966252e-05, 1.321543487849182e-06, 1.0178200369741404e-07,
            7.073857242313719e-09, 4.4347448123862673e-10),
}  # fmt: skip
# (ln(1 + f) - f + f^2/2) / f^3 for |f| <= 1/3; and, with s = f / (2 + f) and z = s^2, (2 artanh(s) - 2 s) / s^3
LOG_F32 = (0.3333321512, -0.2499979734, 0.2001040429, -0.1668049097, 0.1400589496, -0.1218420193, 0.139843151,
           -0.1289196759)  # fmt: skip
LOG_F64 = (0.6666666666666735, 0.39999999999409164, 0.285714287437212, 0.2222219842594931, 0.1818357249231807,
           0.15313829038293092, 0.1479828701775051)  # fmt: skip
# (sin(r) - r) / r^3, (cos(r) - 1 + r^2/2) / r^4, (tanh(x) - x) / x^3, erf(x) / x - 1 in the square of the argument;
# ln(1 - erf(x)) / x for x in [1, 4]
SIN = (-0.1666666716, 0.008333329111, -0.0001983932743, 2.718237283e-06)
COS = (0.04166664556, -0.001388736186, 2.443772973e-05)
TANH = (-0.3333333135, 0.1333321035, -0.05394720286, 0.02170296945, -0.008182682097, 0.002147545107)
ERF_LOW = (0.1283791661, -0.3761262596, 0.1128358543, -0.026853811, 0.005188327748, -0.0008010194288, 7.853865827e-05)
ERF_HIGH = (-1.128599644, -0.6354097724, -0.1056696847, 0.02309227735, -0.003182395361, 0.0001388830569,
            2.840992238e-05, -3.554972182e-06)  # fmt: skip


def horner(x: Lanes, coefficients: tuple[float, ...]) -> Lanes:
    acc = x.const(coefficients[-1])
    for c in coefficients[-2::-1]:
        acc = acc.fma(x, c)
    return acc


def libm(name: str, ret: str | None = None) -> Function:
    """The C library's function, called for every lane; `ret`: its result type, if not that of its float arguments."""

    def call(*args: Lanes) -> Lanes:
        elt = next(a.elt for a in args if a.elt in FRACTION)
        out, n, L = ret or elt, args[0].n, args[0].L
        symbol = name + "f" * (elt == "f32")

        def scalar(texts: list[str]) -> str:
            return L.call(storage(out), symbol, ", ".join(f"{storage(a.elt)} {t}" for a, t in zip(args, texts)))

        if n == 1:
            return args[0].like(scalar([a.text for a in args]), out)
        if n <= UNROLLED:
            v = "poison"
            for i in range(n):
                y = scalar([L.emit(f"extractelement {a.type} {a.text}, i64 {i}") for a in args])
                v = L.emit(f"insertelement {vtype(out, n)} {v}, {storage(out)} {y}, i64 {i}")
            return args[0].like(v, out)
        buffers = [to_stack(a) for a in args]
        result = L.alloca(storage(out), n)

        def lane(i: str) -> None:
            texts = []
            for a, buf in zip(args, buffers):
                at = L.emit(f"getelementptr {storage(a.elt)}, ptr {buf}, i64 {i}")
                texts.append(L.emit(f"load {storage(a.elt)}, ptr {at}"))
            y = scalar(texts)
            L.do(f"store {storage(out)} {y}, ptr {L.emit(f'getelementptr {storage(out)}, ptr {result}, i64 {i}')}")

        L.loop(n, lane)
        return args[0].like(L.emit(f"load {vtype(out, n)}, ptr {result}, align {size_of(out)}"), out)

    return call


def to_stack(x: Lanes) -> str:
    """The address of a copy."""
    buf = x.L.alloca(storage(x.elt), x.n)
    x.L.do(f"store {x.type} {x.text}, ptr {buf}, align {size_of(x.elt)}")
    return buf


def with_sign(x: Lanes, sign: Lanes) -> Lanes:
    """The magnitude of `x`, the sign of `sign`."""
    return x.fn("copysign", sign)


def nearest(x: Lanes, scale: float) -> tuple[Lanes, Lanes]:
    """The whole number nearest to x * scale, as a float and in the low bits of an integer; below 2^22 (f64: 2^51)."""
    magic = 1.5 * 2.0 ** FRACTION[x.elt]
    shifted = x.fma(scale, magic)
    return shifted - magic, shifted.bits() - x.const(magic).bits()


def scale_by(x: Lanes, k: Lanes) -> Lanes:
    """x * 2^k, rounded once although 2^k may be out of range; |k| is below twice the exponent's bias."""
    half = k >> 1
    for part in (half, k - half):
        x = x * ((part + BIAS[x.elt]) << FRACTION[x.elt]).cast("bitcast", x.elt)
    return x


def clamp(x: Lanes, low: float, high: float) -> Lanes:
    """NaN stays."""
    x = (x > high).where(high, x)
    return (x < low).where(low, x)


def exp(x: Lanes) -> Lanes:
    x = clamp(x, *EXP_RANGE[x.elt])
    k, bits = nearest(x, 1 / math.log(2))
    high, low = LN_2[x.elt]
    r = k.fma(-low, k.fma(-high, x))
    return scale_by((r * r).fma(horner(r, EXP[x.elt]), r) + 1.0, bits)


def exp2(x: Lanes) -> Lanes:
    x = clamp(x, *EXP2_RANGE[x.elt])
    k, bits = nearest(x, 1.0)
    r = x - k
    return scale_by(r.fma(horner(r, EXP2[x.elt]), 1.0), bits)


def logarithm(e: dict[str, tuple[float, float]], two: dict[str, tuple[float, float]]) -> Function:
    """The logarithm to the base for which log(e) = `e` and log(2) = `two`.

    x = 2^k (1 + f) with f in [-1/3, 1/3) (f64: 1 + f in [sqrt(1/2), sqrt(2))); ln(1 + f) = f + tail.
    """

    def call(x: Lanes) -> Lanes:
        elt, fraction = x.elt, FRACTION[x.elt]
        tiny = x < 2.0 ** (1 - BIAS[elt])  # subnormal
        bits = tiny.where(x * 2.0**fraction, x).bits()
        k = (bits - x.const(2 / 3 if elt == "f32" else math.sqrt(0.5)).bits()) >> fraction
        f = (bits - (k << fraction)).cast("bitcast", elt) - 1.0
        k = tiny.where(k - fraction, k).cast("sitofp", elt)
        square = f * f
        if elt == "f32":
            tail = square * f.fma(horner(f, LOG_F32), -0.5)
        else:
            s = f / (f + 2.0)
            half, z = square * 0.5, s * s
            tail = s.fma(z.fma(horner(z, LOG_F64), half), -half)
        (e_high, e_low), (two_high, two_low) = e[elt], two[elt]
        y = tail if e_high == 1.0 else tail.fma(e_high, f * e_low)
        y = y if two_low == 0.0 else k.fma(two_low, y)
        y = f + y if e_high == 1.0 else f.fma(e_high, y)
        y = y + k if two_high == 1.0 else k.fma(two_high, y)
        y = x.eq(0.0).where(-INF, y)
        y = (x < 0.0).where(NAN, y)
        return (x < INF).where(y, x)

    return call


log, log2, log10 = logarithm(ONE, LN_2), logarithm(LOG2_E, ONE), logarithm(LOG10_E, LOG10_2)


def circular(name: str, shift: int) -> Function:
    """sin (shift 0) or cos (shift 1) of f32: x = k pi/2 + r is reduced in f64, exactly enough below 2^50."""
    fallback = libm(name)

    def call(x: Lanes) -> Lanes:
        if x.elt == "f64":
            return fallback(x)
        a = x.abs()
        wide = a.cast("fpext", "f64")
        k, bits = nearest(wide, 2 / math.pi)
        high, low = PI_HALF
        r = k.fma(-low, k.fma(-high, wide)).cast("fptrunc", "f32")
        quadrant = bits.resize("i32") + shift
        z = r * r
        sine = (r * z).fma(horner(z, SIN), r)
        cosine = (z * z).fma(horner(z, COS), z.fma(-0.5, 1.0))
        y = (quadrant & 1).eq(0).where(sine, cosine).bits() ^ ((quadrant & 2) << 30)
        if not shift:
            y = y ^ (x.bits() & -(2**31))
        y = y.cast("bitcast", "f32")
        return rarely(a >= 2.0**50, y, lambda: fallback(x))

    return call


def rarely(condition: Lanes, usual: Lanes, other: Callable[[], Lanes]) -> Lanes:
    """`other()` if `condition` holds in any lane, else `usual`. A branch: `other` is slow."""
    L = usual.L
    buf = to_stack(usual)
    some = condition.text
    if usual.n > 1:
        some = L.call("i1", f"llvm.vector.reduce.or.v{usual.n}i1", f"{condition.type} {some}")

    def body() -> None:
        L.do(f"store {usual.type} {other().text}, ptr {buf}, align {size_of(usual.elt)}")

    L.when(some, body)
    return usual.like(L.emit(f"load {usual.type}, ptr {buf}, align {size_of(usual.elt)}"))


sin, cos = circular("sin", 0), circular("cos", 1)


def tanh(x: Lanes) -> Lanes:
    if x.elt == "f64":
        return libm("tanh")(x)
    a = x.abs()
    z = a * a
    low = (a * z).fma(horner(z, TANH), a)
    high = 1.0 - 2.0 / (exp(a + a) + 1.0)
    return with_sign((a < 0.625).where(low, high), x)


def erf(x: Lanes) -> Lanes:
    if x.elt == "f64":
        return libm("erf")(x)
    a = x.abs()
    a = (a > 4.0).where(4.0, a)  # erf(4) rounds to 1
    low = a.fma(horner(a * a, ERF_LOW), a)
    high = 1.0 - exp(a * horner(a, ERF_HIGH))
    return with_sign((a < 1.0).where(low, high), x)


def in_f64(function: Function) -> Function:
    """The function for f32 too, computed in f64 and rounded."""

    def call(*args: Lanes) -> Lanes:
        elt = next(a.elt for a in args if a.elt in FRACTION)
        y = function(*(a.cast("fpext", "f64") if a.elt == "f32" else a for a in args))
        return y.cast("fptrunc", elt) if elt == "f32" else y

    return call


def reciprocal(function: Function) -> Function:
    return lambda *xs: 1.0 / function(*xs)


def intrinsic(name: str) -> Function:
    return lambda x, *others: x.fn(name, *others)


def fdim(x: Lanes, y: Lanes) -> Lanes:
    return x.cmp("ole", y).where(0.0, x - y)


def saturate(x: Lanes) -> Lanes:
    """Into [0, 1]; NaN gives 0."""
    return (x > 0.0).where((x > 1.0).where(1.0, x), 0.0)


def hypot(*xs: Lanes) -> Lanes:
    """The Euclidean norm of two to four numbers."""
    return functools.reduce(libm("hypot"), xs)


def circular_pi(shift: int) -> Function:
    """sin(pi x) (shift 0) or cos(pi x) (shift 1) of f64."""

    def call(x: Lanes) -> Lanes:
        turn = x - (x * 0.5).fn("roundeven") * 2.0  # exact
        k, quadrant = nearest(turn, 2.0)
        r = (turn - k * 0.5) * math.pi
        quadrant = quadrant + shift
        y = (quadrant & 1).eq(0).where(libm("sin")(r), libm("cos")(r))
        y = (y.bits() ^ ((quadrant & 2) << 62)).cast("bitcast", "f64")
        return y.eq(0.0).where(0.0 if shift else x * 0.0, y)

    return call


def erfcx(x: Lanes) -> Lanes:
    """exp(x^2) erfc(x) of f64: from 20 on by the asymptotic series."""
    bounded = clamp(x, -27.0, 20.0)
    square = bounded * bounded
    low = (exp(square) * (bounded.fma(bounded, -square) + 1.0)) * libm("erfc")(bounded)
    series = tuple(float((-1) ** k * math.prod(range(1, 2 * k, 2))) for k in range(9))
    high = horner(0.5 / (x * x), series) * (1 / math.sqrt(math.pi)) / x
    return (x > 20.0).where(high, low)


def inverse_erf(a: Lanes, q: Lanes) -> Lanes:
    """y >= 0 with erf(y) = a and erfc(y) = q, in f64; a + q = 1, each given as exactly as it is known."""
    # A closed form good to 0.3% (S. Winitzki, 2008), then Halley's method, each step of which cubes the error
    log_q = log(q * (2.0 - q))
    t = log_q * 0.5 + 2 / (math.pi * 0.147)
    y = ((t * t - log_q * (1 / 0.147)).fn("sqrt") - t).fn("sqrt")
    for _ in range(3):
        error = (a < 0.5).where(libm("erf")(y) - a, q - libm("erfc")(y))
        newton = error * (math.sqrt(math.pi) / 2) / exp(-(y * y))
        y = y - newton / newton.fma(y, 1.0)
    return q.eq(0.0).where(INF, y)


def erfinv(x: Lanes) -> Lanes:
    return with_sign(inverse_erf(x.abs(), 1.0 - x.abs()), x)


def erfcinv(q: Lanes) -> Lanes:
    x = 1.0 - q
    return with_sign(inverse_erf(x.abs(), (q > 1.0).where(2.0 - q, q)), x)
