"""Bessel functions of orders zero and one, by fits near zero and along their asymptotic forms."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi
from typing import Any

import torch
from torch import Tensor

from turbine.capture.rules.polynomial import polynomial
from turbine.capture.rules.widening import Function, in_double

aten = torch.ops.aten

# Beyond these, the oscillating functions use their asymptotic form, the others a tail fit.
_OSCILLATING, _GROWING, _FALLING = 8.0, 8.0, 2.0


@in_double
def i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I0(x)."""
    return _scaled_i0(x.abs())


@in_double
def i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I1(x), odd."""
    return _scaled_i1(x)


@in_double
def i0(x: Tensor) -> Tensor:
    """I0, even."""
    return torch.exp(x.abs()) * _scaled_i0(x.abs())


@in_double
def i1(x: Tensor) -> Tensor:
    """I1, odd."""
    return torch.exp(x.abs()) * _scaled_i1(x)


def _scaled_i0(size: Tensor) -> Tensor:
    near = polynomial(_to_unit_interval(size, _GROWING), _I0_NEAR)
    far = polynomial(_tail(size, _GROWING), _I0_FAR) / torch.sqrt(size)
    return torch.where(size <= _GROWING, near, far)


def _scaled_i1(x: Tensor) -> Tensor:
    size = x.abs()
    near = x * polynomial(_to_unit_interval(size, _GROWING), _I1_NEAR)
    far = polynomial(_tail(size, _GROWING), _I1_FAR) / torch.sqrt(size)
    return torch.where(size <= _GROWING, near, torch.where(x < 0.0, -far, far))


@in_double
def k0(x: Tensor) -> Tensor:
    """K0 of a positive number."""
    return torch.exp(-x) * _scaled_k0(x)


@in_double
def k1(x: Tensor) -> Tensor:
    """K1 of a positive number."""
    return torch.exp(-x) * _scaled_k1(x)


@in_double
def k0e(x: Tensor) -> Tensor:
    """exp(x) K0(x)."""
    return _scaled_k0(x)


@in_double
def k1e(x: Tensor) -> Tensor:
    """exp(x) K1(x)."""
    return _scaled_k1(x)


def _scaled_k0(x: Tensor) -> Tensor:
    held = torch.clamp(x, 0.0, _FALLING)
    near = polynomial(_to_unit_interval(held * held, _FALLING**2), _K0_NEAR)
    near = near - torch.log(0.5 * held) * torch.exp(held) * _scaled_i0(held)
    return _for_positive(x, torch.exp(held) * near, _K0_FAR)


def _scaled_k1(x: Tensor) -> Tensor:
    held = torch.clamp(x, 0.0, _FALLING)
    near = polynomial(_to_unit_interval(held * held, _FALLING**2), _K1_NEAR) / held
    near = near + torch.log(0.5 * held) * torch.exp(held) * _scaled_i1(held)
    return _for_positive(x, torch.exp(held) * near, _K1_FAR)


def _for_positive(x: Tensor, near: Tensor, fit: tuple[float, ...]) -> Tensor:
    far = polynomial(_tail(x, _FALLING), fit) / torch.sqrt(x)
    value = torch.where(x <= _FALLING, near, far)
    return torch.where(x == 0.0, inf, torch.where(x < 0.0, nan, value))


def _narrow_only(function: Function) -> Function:
    """Apply a rule to f32 and narrower types: the oscillating fits lack digits for f64."""

    def apply_rule(x: Tensor) -> Tensor:
        return NotImplemented if x.dtype == torch.float64 else in_double(function)(x)

    return apply_rule


@_narrow_only
def j0(x: Tensor) -> Tensor:
    """J0, even."""
    size = x.abs()
    p, q = _phase(size, _P0_FAR, _Q0_FAR)
    far = p * torch.cos(size - pi / 4) - q * torch.sin(size - pi / 4)
    return torch.where(size <= _OSCILLATING, _in_square(size, _J0_NEAR), far)


@_narrow_only
def j1(x: Tensor) -> Tensor:
    """J1, odd."""
    size = x.abs()
    p, q = _phase(size, _P1_FAR, _Q1_FAR)
    far = p * torch.cos(size - 3 * pi / 4) - q * torch.sin(size - 3 * pi / 4)
    near = size * _in_square(size, _J1_NEAR)
    value = torch.where(size <= _OSCILLATING, near, far)
    return torch.where(x < 0.0, -value, value)


@_narrow_only
def y0(x: Tensor) -> Tensor:
    """Y0 of a positive number."""
    p, q = _phase(x, _P0_FAR, _Q0_FAR)
    far = p * torch.sin(x - pi / 4) + q * torch.cos(x - pi / 4)
    near = _in_square(x, _Y0_NEAR) + (2 / pi) * torch.log(x) * _in_square(x, _J0_NEAR)
    value = torch.where(x <= _OSCILLATING, near, far)
    return torch.where(x == 0.0, -inf, torch.where(x < 0.0, nan, value))


@_narrow_only
def y1(x: Tensor) -> Tensor:
    """Y1 of a positive number."""
    p, q = _phase(x, _P1_FAR, _Q1_FAR)
    far = p * torch.sin(x - 3 * pi / 4) + q * torch.cos(x - 3 * pi / 4)
    smooth = x * _in_square(x, _Y1_NEAR)
    near = smooth + (2 / pi) * (torch.log(x) * x * _in_square(x, _J1_NEAR) - 1.0 / x)
    value = torch.where(x <= _OSCILLATING, near, far)
    return torch.where(x == 0.0, -inf, torch.where(x < 0.0, nan, value))


def _in_square(x: Tensor, fit: tuple[float, ...]) -> Tensor:
    return polynomial(_to_unit_interval(x * x, _OSCILLATING**2), fit)


def _phase(x: Tensor, p: tuple[float, ...], q: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """The two slowly varying factors of the asymptotic form, times its amplitude."""
    size = torch.clamp(x, min=_OSCILLATING)
    square = (_OSCILLATING / size) * (_OSCILLATING / size) * 2.0 - 1.0
    amplitude = torch.sqrt((2 / pi) / size)
    return amplitude * polynomial(square, p), amplitude * polynomial(square, q) / size


def _to_unit_interval(x: Tensor, high: float) -> Tensor:
    """Map [0, high] to [-1, 1]."""
    return torch.clamp(x, 0.0, high) * (2 / high) - 1.0


def _tail(x: Tensor, start: float) -> Tensor:
    """start / x for x >= start, mapped to [-1, 1]."""
    return torch.clamp(start / x, 0.0, 1.0) * 2.0 - 1.0


@in_double
def spherical_j0(x: Tensor) -> Tensor:
    """sin(x) / x."""
    value = torch.sin(x) / x
    value = torch.where(x.abs() < 1e-4, 1.0 - x * x * (1 / 6), value)
    return torch.where(x.abs() == inf, 0.0, value)


# exp(-x) I0(x) for x from 0 to 8. All of these are Chebyshev fits.
# fmt: off
_I0_NEAR = (
    -8.299632372558316e-08, 9.82978422137266e-08, 3.490779582599038e-07, 1.490437275872589e-08,
    -2.4016054052408123e-06, 4.113621907193715e-06, -7.0507247013783635e-06, 2.385427508099712e-05,
    -6.791109005001918e-05, 0.00016375496198225953, -0.00038111517874137767, 0.0008553953538798611,
    -0.0018128091917977043, 0.003617558858094697, -0.006792069354373077, 0.01195993844046607,
    -0.01968273561586258, 0.030177942217240388, -0.04298593636683497, 0.05677702781684342,
    -0.06954119693494723, 0.07927522625608976, -0.08496338084159599, 0.0873434161604412,
    -0.0890434413627158, 0.09451562854020625, -0.11300432688619053, 0.20700192122398597,
)

# exp(-x) I0(x) sqrt(x) in 8 / x.
_I0_FAR = (
    4.151689892962121e-11, -5.889509263474145e-10, -3.071160731077302e-10, 3.0893814272383284e-09,
    1.1624591875577654e-09, -7.239094323025657e-09, -3.2012139253661655e-09, 1.002863555924439e-08,
    7.381152641071876e-09, -7.579969504511277e-09, -1.3344232571452425e-08, -5.7332410473541485e-09,
    7.538554251457002e-09, 2.1273561718471688e-08, 3.9328342201949975e-08, 8.876372661906534e-08,
    2.9735965292565e-07, 1.4838444764078312e-06, 1.1143033797325746e-05, 0.00013621607447628534,
    0.0033605519836678215, 0.4021765094450078,
)

# exp(-x) I1(x) / x for x from 0 to 8.
_I1_NEAR = (
    -3.936890208476927e-08, 2.3851906540566147e-08, 2.386959758967117e-07, -8.676256534770674e-08,
    -8.417870526315258e-07, 7.132694545111561e-07, 8.316198727536265e-08, 2.7580853580510434e-06,
    -1.047310766309251e-05, 2.478409328091789e-05, -6.042441668504504e-05, 0.00014803962003651625,
    -0.0003416938823050946, 0.0007446938244622378, -0.0015386883779946515, 0.003005703448471453,
    -0.005534613563825384, 0.009583974964835535, -0.015571301832951696, 0.023686015174730596,
    -0.033671356268548794, 0.044674572768490836, -0.05528003918464719, 0.06376740370710966,
    -0.06848260620693998, 0.06805759990961725, -0.06112433802965761, 0.04468770987560852,
)

# exp(-x) I1(x) sqrt(x) in 8 / x.
_I1_FAR = (
    -2.401926401412762e-11, -2.726174801161938e-10, 2.1742454203136556e-10, 1.033403199282307e-09,
    -9.677300449804267e-10, -1.0886495096247314e-09, 2.988054671184107e-09, -8.460123753211853e-10,
    -7.382484592842591e-09, 1.634991084140397e-09, 1.3935960305865245e-08, 8.439816563112547e-09,
    -8.404696067510497e-09, -2.3788325859656817e-08, -4.313237172786013e-08, -9.995471901187286e-08,
    -3.4838533302225883e-07, -1.8349142441450519e-06,
    -1.5038547209677511e-05, -0.00021923576372547243,
    -0.009749577193235723, 0.38939845902587183,
)

# K0(x) + log(x/2) I0(x) in x squared, for x from 0 to 2.
_K0_NEAR = (
    1.2631876595541751e-13, 5.4302089849221336e-12, 6.621130476884133e-10, 6.093365893386433e-08,
    4.054506746395983e-06, 0.00018280555825782893, 0.005053392643165627, 0.07177701034240858,
    0.34049732101338254, -0.30362077291575557,
)

# exp(x) K0(x) sqrt(x) in 2 / x.
_K0_FAR = (
    -2.9183745233080495e-09, 2.804428556925665e-08, 1.7952750583853393e-08, -1.61418860974797e-07,
    -4.8744969289732554e-08, 4.0557018236878e-07, 7.640445385572736e-08, -5.832972912045866e-07,
    -7.718573529389881e-08, 5.314417655823916e-07, 5.000215568043237e-08, -3.144952776347743e-07,
    -3.087928729578881e-08, 1.4386821851145572e-07, -3.4141729277872214e-08, 6.97681625847925e-08,
    -2.7034029748644307e-07, 7.482779344204075e-07, -2.191000980926749e-06, 7.001708692223024e-06,
    -2.4735216890596804e-05, 9.95605744008662e-05, -0.00047976905634968746, 0.0030328918097571075,
    -0.0310714618248947, 1.218595338513392,
)

# x (K1(x) - log(x/2) I1(x)) in x squared, for x from 0 to 2.
_K1_NEAR = (
    -1.3946731582741775e-13, -5.713498474568365e-13, -8.500933799326637e-11, -9.032230086365653e-09,
    -7.081136390105998e-07, -3.891869057599678e-05, -0.0013831688465242309, -0.027854235219787023,
    -0.24383852886775606, -0.33224095524031255, 0.8850882877295898,
)

# exp(x) K1(x) sqrt(x) in 2 / x.
_K1_FAR = (
    5.673931347640887e-09, 3.058710332027569e-08, -3.438982586283734e-08, -1.7624149659383007e-07,
    9.17824013176348e-08, 4.4276057381437945e-07, -1.4138411005841273e-07, -6.373990785869882e-07,
    1.3982010440325417e-07, 5.7881482506319e-07, -8.99103136061451e-08, -3.5099615312471843e-07,
    4.9352887538714654e-08, 1.1826542545106969e-07, 3.625934806215841e-08, -1.5815400145870074e-07,
    3.253474166888892e-07, -9.007270426472945e-07, 2.729759572431601e-06, -8.961791331027321e-06,
    3.284388418778965e-05, -0.0001395901902004464, 0.0007357241543429417, -0.0055667298806439175,
    0.10334973775387025, 1.3631518903713435,
)

# J0(x) in x squared, for x from 0 to 8.
_J0_NEAR = (
    0.008819474297550603, -0.0017284764336362617, -0.046009701311512184, 0.009032616703207427,
    0.1026498418432161, -0.020198744180506233, -0.127763400831416, 0.025221588527087894,
    0.0970001331729886, -0.019241916061520807, -0.04606003392302426, 0.008767177956459872,
    0.017569078320003283, -0.03120623511932132, 0.14368908028174282, -0.5069912915593062,
    1.0385757981750214, -0.8081320570305139, -0.6484744014515049, 0.9303027400575045,
    0.045829544671199124,
)

# J1(x) / x in x squared.
_J1_NEAR = (
    0.0017145479999795916, -0.0002682589417422586, -0.008965627282090721, 0.0014037464557143994,
    0.020066182243167384, -0.003144721826754947, -0.025085640442022918, 0.003936546733594868,
    0.019167787392964916, -0.0030138229511118054, -0.009198043743505316, 0.0014267785066007018,
    0.002991140514629324, -0.002463586105169917, 0.011975002231607487, -0.05466871984417633,
    0.15862822072527388, -0.2596021310839032, 0.15151502412131546, 0.08105894067803077,
    -0.05814382020991887,
)

# Y0(x) - 2/pi log(x) J0(x) in x squared.
_Y0_NEAR = (
    0.038404806382333276, -0.00968195768811369, -0.20894380766112836, 0.052745361723338755,
    0.4892158904091947, -0.12371375033808191, -0.6440540330417807, 0.16325989965983553,
    0.5224307400746774, -0.13288075381033487, -0.26880628963845377, 0.06864753336374936,
    0.0876831936115679, -0.029417404164578373, 0.02960813987198506, -0.2145743152741672,
    0.6738807416920153, -1.0780077540011626, 0.1440632978783602, 1.6471155036780432,
    -0.8284366064501197, -0.3822506094527739,
)

# (Y1(x) - 2/pi (log(x) J1(x) - 1/x)) / x in x squared.
_Y1_NEAR = (
    -0.0032968382672915173, 0.0010424874029410745, 0.017841780560506167, -0.005662329027101424,
    -0.04148098046003244, 0.01322829106237405, 0.054083798571311584, -0.01736170471221288,
    -0.04326599729396702, 0.014020576614949475, 0.021798048323869806, -0.007168447382397835,
    -0.006759445934654447, 0.0018451956414991732, 0.004651941162803702, -0.0200605483109946,
    0.07844122489261701, -0.19635690571841863, 0.23507364445564738, 0.023366422176744048,
    -0.2433772434906753, 0.07075980637777637,
)

# The slow factors of J0 and Y0, in (8 / x) squared; the second over x.
_P0_FAR = (
    1.7592851593105579e-12, -1.7761582434059684e-13,
    -4.9510072162652025e-12, -8.456709218163949e-13,
    1.060187624873749e-11, -2.503516049309319e-11, 1.5204705010990963e-10, -1.2120819069184952e-09,
    1.2804426603194853e-08, -2.0527448097442867e-07, 6.1374160279771335e-06, -0.0005363673192136726,
    0.9994572757882526,
)

# Its second one.
_Q0_FAR = (
    2.395935575046095e-12, -1.9644730927127026e-12, -1.4370182913889655e-11, 4.646392814133837e-11,
    -9.823708786277097e-11, 1.2169430340226554e-10, 7.46658549530749e-11, 3.0027790914621515e-09,
    -5.9080417846353906e-08, 5.445031502877343e-07, -1.1837317269879777e-05, 0.0005466434091030136,
    -0.12444091248554179,
)

# The slow factors of J1 and Y1.
_P1_FAR = (
    1.8079823289982927e-12, 1.1412090749896052e-13, -5.838641315796775e-12, 1.0975271987058742e-12,
    1.08357911954409e-12, 2.721317987066122e-11, -1.7452742921485634e-10, 1.3603183212521679e-09,
    -1.4707783070765456e-08, 2.4536765562440426e-07, -7.959694756078842e-06, 0.0008988049416713761,
    1.0009070262780826,
)

# Its second one.
_Q1_FAR = (
    -4.380236804180656e-12, 5.600312191516293e-12, 2.480420322156912e-11, -9.355472216901293e-11,
    1.9222526614084488e-10, -1.4256227406420775e-10, -9.76182551411134e-10, -6.534120212249769e-10,
    8.227045533292642e-08, -6.099341313381558e-07, 1.4614354810175387e-05, -0.0007696979108379704,
    0.3742149954093703,
)
# fmt: on


RULES: dict[Any, Callable[..., Any]] = {
    aten.i0.default: i0,
    aten.special_i0e.default: i0e,
    aten.special_i1.default: i1,
    aten.special_i1e.default: i1e,
    aten.special_modified_bessel_i0.default: i0,
    aten.special_modified_bessel_i1.default: i1,
    aten.special_modified_bessel_k0.default: k0,
    aten.special_modified_bessel_k1.default: k1,
    aten.special_scaled_modified_bessel_k0.default: k0e,
    aten.special_scaled_modified_bessel_k1.default: k1e,
    aten.special_bessel_j0.default: j0,
    aten.special_bessel_j1.default: j1,
    aten.special_bessel_y0.default: y0,
    aten.special_bessel_y1.default: y1,
    aten.special_spherical_bessel_j0.default: spherical_j0,
}
