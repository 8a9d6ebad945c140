"""Settings as yaml files: of data sets, trainers and experiments.

`promptcal.trainers.config` reads them.
"""
