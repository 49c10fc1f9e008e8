"""Rules: one file per published method, and the registry from which everything else about it is derived.

A rule is a frozen dataclass with three functions, `start`, `propose` and `observe` (see `Rule` in base.py). Every file
of this package is imported, and a new one needs no entry elsewhere: `cmdpkit.rules.PMDPD` is the class that pmd_pd.py
registers. "Write your own rule" in CONTRIBUTING.md has a worked example.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from cmdpkit.rules.base import Response, Rule, State, View, Weights
from cmdpkit.rules.registry import methods, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

_RULES = {method.rule.__name__: method.rule for method in methods()}

__all__ = ["Response", "Rule", "State", "View", "Weights", "register", *_RULES]


def __getattr__(name: str) -> Any:
    if name not in _RULES:
        raise AttributeError(f"module 'cmdpkit.rules' has no attribute {name!r}; its rules are {', '.join(_RULES)}")
    return _RULES[name]


def __dir__() -> list[str]:
    return sorted(__all__)
