"""A stand-in with the published interface of Dassl, small enough for tests, faults of the real one included:
it imports wilds and pandas, mutes logging, uses np.int, passes `verbose` to torch's scheduler, and saves live objects.
"""
__version__ = "0.6.3"
