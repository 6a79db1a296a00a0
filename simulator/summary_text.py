"""Numbers as people read them: scaled, with decimal prefixes.

Inside the program everything is in SI base units; only charts and reports scale.
"""

_DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
GIB = 2.0**30


def seconds_text(seconds: float) -> str:
    """Four digits and a unit: 12.33 s, 84.06 ms, 3.2 µs."""
    size = abs(seconds)
    if size >= 1000.0:
        return f"{seconds:,.0f} s"
    if size >= 0.99995 or size == 0.0:
        return f"{seconds:.4g} s"
    if size >= 0.99995e-3:
        return f"{seconds * 1e3:.4g} ms"
    return f"{seconds * 1e6:.4g} µs" if size >= 5e-10 else "0 s"


def scaled_text(value: float, unit: str) -> str:
    """Three digits or more with a decimal prefix: 64.4 GB, 337 GB/s, 1.2 MJ."""
    for factor, prefix in _DECIMAL:
        if abs(value) >= 0.9995 * factor:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def gib_text(num_bytes: float) -> str:
    """Binary gibibytes, as `nvidia-smi` and PyTorch print them: 59.9 GiB, 0.26 GiB."""
    size = num_bytes / GIB
    return f"{size:.1f} GiB" if size >= 0.995 else f"{size:.2f} GiB"


def percent_text(fraction: float, digits: int = 1) -> str:
    """A fraction as a percentage."""
    return f"{fraction * 100:.{digits}f} %"


def points_text(fraction: float) -> str:
    """A difference of two percentages: 13.0 points."""
    return f"{fraction * 100:.1f} points"


def count_text(value: float) -> str:
    """Whole numbers with thousands apart; small ones with three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else _three_digits(value)


def money_text(usd: float) -> str:
    """Dollars, whole from a thousand on."""
    if usd >= 1000:
        return f"${usd:,.0f}"
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.2g}"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 else f"{value:.3g}"
