"""Prediction of many images: view features, caches on disk, the Jacobian, carried contexts."""
