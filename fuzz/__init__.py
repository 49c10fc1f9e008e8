"""A fuzzer: nasty models, solved and certified by the package and judged in exact arithmetic.

`python -m fuzz 1000` runs it; every model is a function of the seed and its index, so that findings can be replayed.
"""
