"""Prediction of many images: view features and their cache, tuning, memory limits."""
