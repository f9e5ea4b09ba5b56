"""One instance of the template in `kernels/`: its parameters, rules, needs, source, compiler and launch."""
