"""Draws the tiles of LandCover."""
