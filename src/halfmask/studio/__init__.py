"""A page on this machine: roles by click, the price of privacy, training and report."""
