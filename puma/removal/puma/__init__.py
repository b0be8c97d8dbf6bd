"""PUMA (calibrated, and Algorithm 1 as printed) and the steps it is made of.

``puma.removal`` alone imports from here. Inside, imports point one way: method → the two kinds
of step → stepper → line search.
"""
