"""What `halfmask reproduce` and `halfmask bench` run: experiments, benches, published data sets.

One module per experiment (`run` gives its results) and per bench (`bench_NAME`). It is not part of
the wheel of halfmask: install it from a clone with `pip install ./lab`.
"""
